"""Checks of many runs: what each finds by itself, on all cores, with the time that they take."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.files import read_json, write_json
from kvscope.cli.main import main
from kvscope.report import checking
from kvscope.report.check_run import CheckResult, inspect_run
from kvscope.report.checking import Outlook, RunCheck, announcement, check_all

from .report_fixture import Fake, write_study


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A sound run, a run with truncated records, an edited run, and a run without run.json."""
    results = tmp_path_factory.mktemp("results")
    write_study(results, [Fake({"seed": 0}, "short", repeats=1)])
    write_study(results, [Fake({"seed": 3}, status=None)])
    found = [results / "experiments" / f"fake-{seed}" for seed in range(4)]
    for place in ("experiments", "tables"):
        for copy in found[1:3]:
            shutil.copytree(results / place / "fake-0", results / place / copy.name)
    (found[1] / "steps.parquet").write_bytes(b"PAR1")
    facts = read_json(found[2] / "run.json")
    write_json(found[2] / "run.json", facts | {"status": "failed", "reason": "it is said so"})
    return found


def results_of(checks: Sequence[RunCheck]) -> list[CheckResult]:
    return list(check_all(checks, lambda _: None))


@pytest.mark.thorough
def test_checking_many_runs_finds_the_same_as_each_alone_in_order(runs: list[Path]) -> None:
    order = [*runs, runs[0]]
    alone = [inspect_run(run) for run in order]
    assert any(check.complaints for check in alone)
    assert any(check.verdicts for check in alone)
    assert results_of([RunCheck(run) for run in order]) == alone


def test_an_unreadable_run_is_reported_after_earlier_runs(runs: list[Path]) -> None:
    checks = [RunCheck(runs[0]), RunCheck(runs[0] / "nowhere"), RunCheck(runs[1])]
    with closing(check_all(checks, lambda _: None)) as found:
        assert next(found).verdicts
        with pytest.raises(BadInput, match=r"nowhere: no such directory"):
            next(found)


class Killed(RunCheck):
    """A check whose process the system kills."""

    def make(self) -> CheckResult:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_check_that_is_killed_is_one_sentence(runs: list[Path]) -> None:
    with pytest.raises(KvscopeError, match=r"a process of the check was killed.*taskset"):
        results_of([Killed(run) for run in runs[:2]])


class Slow(RunCheck):
    """A check that takes a while."""

    def make(self) -> CheckResult:
        time.sleep(0.3)
        return CheckResult([], [])


def test_the_progress_counts_up_and_names_the_time_left(runs: list[Path]) -> None:
    said: list[str] = []
    assert len(list(check_all([Slow(run) for run in runs * 2], said.append))) == 8
    counts = [int(words.split(" of 8 checked, about ")[0]) for words in said]
    assert counts == sorted(counts)
    assert 0 < counts[-1] < 8
    assert all(words.endswith(" left") for words in said)


def test_the_command_says_at_its_start_how_long_it_takes(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(runs[0]), str(runs[0]), "--brief"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"kvscope: {announcement([RunCheck(runs[0])] * 2)}\n")
    assert len(out.splitlines()) == 2


def test_all_cores_are_used_and_no_more_than_there_are_checks(runs: list[Path]) -> None:
    cores = len(os.sched_getaffinity(0))
    for count in (1, cores, 3 * cores):
        assert Outlook([RunCheck(runs[0])] * count).workers == min(count, cores)


class Expected(RunCheck):
    """A check that is expected to take as many seconds as its directory says."""

    def expected_s(self) -> float:
        return float(self.run.name)


EXPECTED_S = st.lists(st.floats(0.01, 1000), min_size=1, max_size=8)


@given(EXPECTED_S, st.floats(0.1, 10))
def test_the_time_left_becomes_that_of_this_machine(
    expected_s: list[float], slowness: float
) -> None:
    outlook = Outlook([Expected(Path(str(seconds))) for seconds in expected_s])
    assert outlook.left_s() == pytest.approx(sum(expected_s) / outlook.workers)
    ended_s = 0.0
    for place, one_s in enumerate(expected_s):
        outlook.end(place)
        ended_s += one_s
        truth_s = slowness * (sum(expected_s) - ended_s) / outlook.workers
        found_s = outlook.left_s(slowness * ended_s / outlook.workers)
        least_s, most_s = sorted((truth_s, truth_s / slowness))
        assert least_s * (1 - 1e-9) - 1e-6 <= found_s <= most_s * (1 + 1e-9) + 1e-6
    assert outlook.left_s(1e6) == pytest.approx(0, abs=1e-2)


@given(st.floats(1, 10**4), st.floats(0, 10**4))
def test_more_elapsed_time_means_more_time_left(elapsed_s: float, more_s: float) -> None:
    outlook = Outlook([Expected(Path(name)) for name in ("10", "20", "30")])
    outlook.end(1)
    assert outlook.left_s(elapsed_s) <= outlook.left_s(elapsed_s + more_s)


def test_a_signal_comes_when_no_future_is_locked(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised within `wait`, it would leave futures locked, and their pool would never end."""
    unlocked = []

    def wait_interrupted(*words: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        result = wait(*words)
        unlocked.append(True)
        return result

    monkeypatch.setattr(checking, "wait", wait_interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(check_all([RunCheck(runs[0])] * 3, lambda words: None))
    assert unlocked == [True]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "whole_group", [True, False], ids=["by the terminal", "this process alone"]
)
def test_ctrl_c_ends_all_and_leaves_nothing(
    runs: list[Path], tmp_path: Path, whole_group: bool
) -> None:
    words = [sys.executable, "-m", "kvscope.cli", "check", "--brief", *[str(runs[0])] * 500]
    process = subprocess.Popen(
        words,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert process.stderr
    assert "checking 500 runs" in process.stderr.readline()
    process.stderr.readline()  # of the first that was checked
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.endswith("kvscope: interrupted\n")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
