"""What goes wrong costs no more than itself, and is said.

Measured processes whose supervisor is killed are real ones here: no forks.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest

from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.run import supervisor
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


def test_a_killed_measurement_keeps_its_finished_repeats_and_says_so(warm: Warm, tmp_path):
    out = tmp_path / "run"
    words = [*SMALL, AMPLE, "profiler=none"]
    words = [w.replace("repeats=2", "repeats=500") for w in words]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvscope.cli", "run", *words, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | warm.variables,
        stderr=subprocess.PIPE,
        text=True,
    )
    session = out / "attempt" / "session.json"
    while not session.exists() or len(read_json(session)["clock"]["repeats"]) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    (measured,) = psutil.Process(process.pid).children()
    os.kill(measured.pid, signal.SIGKILL)
    _, words_said = process.communicate()
    assert process.returncode == 1
    assert "was killed by SIGKILL" in words_said
    facts = read_json(out / "run.json")
    assert facts["status"] == "failed"
    repeats = range(len(facts["clock"]["repeats"]))
    assert len(repeats) >= 2
    for name in ("requests", "steps", "batch"):  # whichever was being written
        assert set(pd.read_parquet(out / f"{name}.parquet")["repeat"]) == {*repeats}
    assert "was killed by SIGKILL" in check_run(out)[0]


@pytest.mark.parametrize("profiler", ["none", "auto"])
def test_a_supervisor_that_is_killed_takes_its_measured_process_with_it(
    warm: Warm, tmp_path, profiler
):
    out = tmp_path / "run"
    words = [w.replace("repeats=2", "repeats=500") for w in (*SMALL, AMPLE)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvscope.cli", "run", *words, f"profiler={profiler}", "--out", out],
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


def fake_nsys(directory: Path, monkeypatch, profile: str) -> None:
    """An nsys whose `profile` does what the given shell text does; "$@" is the command to run."""
    script = directory / "nsys"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 0.0"; exit; }\n'
        'while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done\n'
        f"{profile}\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("KVSCOPE_NSYS", str(script))


def test_an_nsys_that_does_not_start_costs_the_trace_only(warm: Warm, tmp_path, monkeypatch):
    fake_nsys(tmp_path, monkeypatch, "echo cannot start >&2; exit 1")
    facts = warm.run(experiment("profiler=auto"), tmp_path / "run")
    assert (facts["status"], facts["profiler"]["used"]) == ("complete", "none")
    assert "nsys failed" in facts["profiler"]["reason"]
    assert check_run(tmp_path / "run") == []


def test_an_nsys_that_hangs_costs_the_trace_only(warm: Warm, tmp_path, monkeypatch):
    fake_nsys(tmp_path, monkeypatch, '"$@"; sleep 1000')
    monkeypatch.setattr(supervisor, "PROFILER_GRACE_S", 2.0)
    facts = warm.run(experiment("profiler=auto"), tmp_path / "run")
    assert facts["status"] == "complete"
    assert "did not finish" in facts["profiler"]["reason"]
    assert check_run(tmp_path / "run") == []


def test_an_nsys_that_leaves_no_report_is_found_out_in_spite_of_its_exit_code(
    warm: Warm, tmp_path, monkeypatch
):
    fake_nsys(tmp_path, monkeypatch, '"$@"; exit 0')
    facts = warm.run(experiment("profiler=auto"), tmp_path / "run")
    assert facts["status"] == "complete"
    assert facts["profiler"]["reason"] == "nsys left no report"


def test_nsys_that_is_demanded_and_absent_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "find_nsys", lambda: None)
    with pytest.raises(BadInput, match="profiler: 'nsys' is requested"):
        supervisor.run(experiment("profiler=nsys"), tmp_path / "run")
