"""A failure costs only the failed experiment, and is reported.

Campaigns that are killed import vLLM themselves here.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kvscope.base.errors import BadInput, KvscopeError
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.run import engines, profiler
from tests.warm import Warm

from .conftest import AMPLE, ROOT, SMALL, Runner, kvscope

pytestmark = pytest.mark.engine


@pytest.fixture
def copy(run: Runner, tmp_path) -> Path:
    return Path(shutil.copytree(run(AMPLE).directory, tmp_path / "run"))


def test_a_truncated_table_is_named(copy):
    file = copy / "steps.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    (complaint,) = check_run(copy)
    assert "steps.parquet" in complaint
    assert "cut or changed" in complaint


def test_an_edited_file_of_the_same_size_is_named(copy):
    file = copy / "requests.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (complaint,) = check_run(copy)
    assert "requests.parquet" in complaint
    assert "content differs" in complaint


def test_a_removed_file_is_named(copy):
    (copy / "batch.parquet").unlink()
    assert [c for c in check_run(copy) if "batch.parquet: missing" in c]


def test_check_by_hand(copy):
    assert kvscope("check", str(copy)).returncode == 0
    (copy / "run.json").write_text("{")
    done = kvscope("check", str(copy))
    assert done.returncode == 1
    assert "run.json: not readable as JSON" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("profiling", ["none", "auto"])
def test_a_command_that_is_killed_takes_its_engine_with_it(
    warm: Warm, tmp_path: Path, profiling: str
) -> None:
    out = tmp_path / "run"
    words = [w.replace("repeats=2", "repeats=500") for w in (*SMALL, AMPLE)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvscope.cli", "run", *words, f"profiler={profiling}", "--out", out],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while not (out / "attempt" / "session.json").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    measured = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(measured, timeout=600)
    assert not alive
    assert not (out / "run.json").exists()
    facts = warm.run(experiment("profiler=none"), out)
    assert facts["status"] == "complete"
    assert check_run(out) == []
    assert not (out / "attempt").exists()


def experiment(*overrides: str) -> Experiment:
    words = [w for w in SMALL if not w.startswith("repeats")]
    (planned,) = expand(None, [*words, AMPLE, "repeats=1", *overrides], ROOT / "config").experiments
    return planned.experiment


def fake_nsys(directory: Path, monkeypatch: pytest.MonkeyPatch, launch: str) -> None:
    """An nsys whose `launch` does what the given shell text does; "$@" is the command to run."""
    script = directory / "nsys"
    script.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) echo "NVIDIA Nsight Systems version 0.0"; exit;; esac\n'
        'case "$1" in start|stop) exit;; esac\n'
        'while [ "${1#-}" != "$1" ] || [ "$1" = launch ]; do shift; done\n'
        f"{launch}\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("KVSCOPE_NSYS", str(script))


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ("echo cannot start >&2; exit 1", "the process that imports vLLM ended: cannot start"),
        ('exec "$@"', "nsys left no report"),
    ],
)
def test_an_nsys_that_fails_costs_the_trace_only(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str, reason: str
) -> None:
    fake_nsys(tmp_path, monkeypatch, launch)
    facts = warm.run(experiment("profiler=auto"), tmp_path / "run")
    assert (facts["status"], facts["profiler"]["reason"]) == ("complete", reason)
    assert check_run(tmp_path / "run") == []


def test_a_profiler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "START_LIMIT_S", 0.5)
    before = psutil.Process().children()
    with (
        engines.Zygote(os.environ, (), tmp_path / "log", ("sh", "-c", "sleep 1000")) as zygote,
        pytest.raises(KvscopeError, match="vLLM was not imported within"),
    ):
        zygote.start()
    assert psutil.Process().children() == before


def test_nsys_that_is_demanded_and_absent_is_one_sentence(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "find_nsys", lambda: None)
    with pytest.raises(BadInput, match="profiler: 'nsys' is requested"):
        warm.run(experiment("profiler=nsys"), tmp_path / "run")
