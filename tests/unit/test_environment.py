"""The pinned requirements are complete, without contradiction, and installed."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([\w.-]+)==([\w.+]+)")


def pins(name: str) -> list[tuple[str, str]]:
    """The pins of one file of envs/, without those it includes: (canonical name, version)."""
    lines = (ROOT / "envs" / name).read_text().splitlines()
    named = [line for line in lines if line and not line.startswith(("#", "-r "))]
    matches = [PIN.fullmatch(line) for line in named]
    assert None not in matches, f"{name}: a line is not NAME==VERSION"
    return [(canonicalize_name(m[1]), m[2]) for m in matches if m]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_pinned_twice(device: str):
    files = ("build.txt", "kvscope.txt", f"{device}.txt", "dev.txt")
    names = [name for file in files for name, _ in pins(file)]
    assert sorted(names) == sorted(set(names))


def test_all_that_kvscope_asks_for_is_pinned_to_a_version_it_accepts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["workflow"]
    pinned = dict(pins("kvscope.txt") + pins("cpu.txt"))
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_torch_is_pinned_to_its_cpu_build():
    assert dict(pins("cpu.txt"))["torch"].endswith("+cpu")


@pytest.mark.parametrize("file", ["kvscope.txt", "dev.txt"])
def test_the_pinned_packages_are_installed(file: str):
    for name, version in pins(file):
        assert metadata.version(name) == version, name


def test_nvtx_is_one_that_older_nsight_systems_hears():
    assert metadata.version("nvtx") == dict(pins("cpu.txt"))["nvtx"] == "0.2.11"
