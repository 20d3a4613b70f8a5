"""Whole campaigns of real engines: complete, killed, broken, in every design."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from kvscope.base.files import read_json
from kvscope.base.layout import experiment_directory
from kvscope.plan import together
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.run import campaign, engines
from kvscope.run.campaign import Wanted
from kvscope.tables import attempts, runfile
from tests.warm import ROOT

from .conftest import kvscope

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("forked")]

COMMON = (
    *("workload=fixed", "workload.num_requests=6", "workload.prompt_tokens=32"),
    *("workload.output_tokens=48", "engine.max_model_len=96", "engine.max_num_batched_tokens=96"),
    *("tracing=none", "cache.block_size=32"),
)
ROUNDS = 3
TWO = ("cache.blocks=64,8", f"repeats={ROUNDS}", "profiler=none")
COUNTS = ("requests", "prefill_tokens", "recomputed_tokens", "preempted_requests", "kv_blocks_used")


def planned(*overrides: str) -> list[Experiment]:
    result = expand(None, [*COMMON, *overrides], ROOT / "config").experiments
    return [one.experiment for one in result]


def wanted(experiments: list[Experiment], results: Path, force: bool = False) -> list[Wanted]:
    return [Wanted(e, experiment_directory(results, e.id), force) for e in experiments]


def measure(experiments: list[Experiment], results: Path, **more: bool) -> dict[str, str | None]:
    """Why each experiment has no run, by id."""
    with no_trace():
        failures = campaign.measure(wanted(experiments, results, **more), lambda words: None)
    return {i: None if error is None else str(error) for i, error in failures.items()}


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(autouse=True)
def temporaries(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files, which no other process has."""
    place = tmp_path_factory.mktemp("temporaries")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place


@contextmanager
def no_trace() -> Iterator[None]:
    """Every process that the block starts ends with it, and no temporary file remains."""
    before = descendants()
    yield
    started = [descendant for descendant in descendants() if descendant not in before]
    _, alive = psutil.wait_procs(started, timeout=240)  # a busy machine ends them late
    assert [one.cmdline() for one in alive] == []
    assert [*Path(tempfile.gettempdir()).iterdir()] == []


def facts_of(results: Path, experiment: Experiment) -> dict:
    return runfile.read_run(experiment_directory(results, experiment.id))


def repeats(results: Path, experiment: Experiment) -> list[dict]:
    return facts_of(results, experiment)["clock"]["repeats"]


def rounds_of(results: Path, experiment: Experiment) -> list[int]:
    """The numbers of the rounds of its measured repeats, in the order of measurement."""
    entries = [entry for entry in repeats(results, experiment) if not entry.get("profiled")]
    return [entry["round"]["number"] for entry in entries]


def counts(results: Path, experiment: Experiment) -> list[pd.DataFrame]:
    """Counts of each repeat, pass by pass."""
    steps = pd.read_parquet(experiment_directory(results, experiment.id) / "steps.parquet")
    return [rows[[*COUNTS]].reset_index(drop=True) for _, rows in steps.groupby("repeat")]


def assert_complete(results: Path, experiment: Experiment, profiled: int = 0) -> None:
    """Every repeat is there once, in order, with the same counts; no attempt is left."""
    directory = experiment_directory(results, experiment.id)
    assert check_run(directory, quick=True) == []
    entries = repeats(results, experiment)
    assert [entry["repeat"] for entry in entries] == list(range(len(entries)))
    assert [bool(entry.get("profiled")) for entry in entries].count(True) == profiled
    assert (directory / runfile.RUN_DONE).exists()
    assert not (directory / attempts.ATTEMPT).exists()
    first, *others = counts(results, experiment)
    for other in others:
        pd.testing.assert_frame_equal(first, other)


def test_experiments_are_measured_together_and_kept(tmp_path: Path):
    both = planned(*TWO)
    assert measure(both, tmp_path) == {e.id: None for e in both}
    for experiment in both:
        assert_complete(tmp_path, experiment)
        assert rounds_of(tmp_path, experiment) == list(range(ROUNDS))
        facts = facts_of(tmp_path, experiment)
        assert facts["campaign"]["design"] == together.ROUNDS
        assert facts["campaign"]["members"] == [e.id for e in both]
        assert facts["repeats"]["measured"] == ROUNDS
        assert facts["profiler"]["used"] == "none"
        assert facts["warmup"]["uncovered_classes"] == []
    places = [[entry["round"]["place"] for entry in repeats(tmp_path, e)] for e in both]
    assert all(sorted(each) == [0, 1] for each in zip(*places, strict=True))

    before = [facts_of(tmp_path, e) for e in both]
    assert measure(both, tmp_path) == {e.id: None for e in both}
    assert [facts_of(tmp_path, e) for e in both] == before, "a finished run is kept"

    assert measure(both[:1], tmp_path, force=True) == {both[0].id: None}
    assert facts_of(tmp_path, both[0])["campaign"]["id"] != before[0]["campaign"]["id"]
    assert_complete(tmp_path, both[0])
    assert facts_of(tmp_path, both[1]) == before[1]


def test_sittings_start_one_engine_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(together, "machine_gib", lambda: 0.1)
    both = planned(*TWO)
    stood: list[int] = []
    fork = engines.Zygote.fork

    def forked(self: engines.Zygote, directory: Path, threads: int) -> engines.ParkedEngine:
        assert not any(map(psutil.pid_exists, stood)), "two engines stand side by side"
        result = fork(self, directory, threads)
        assert result.pid is not None
        stood.append(result.pid)
        return result

    monkeypatch.setattr(engines.Zygote, "fork", forked)
    assert measure(both, tmp_path) == {e.id: None for e in both}
    assert len(stood) == 2 * ROUNDS
    for experiment in both:
        assert_complete(tmp_path, experiment)
        assert rounds_of(tmp_path, experiment) == list(range(ROUNDS))
        assert facts_of(tmp_path, experiment)["campaign"]["design"] == together.SITTINGS


def test_groups_share_a_reference_that_is_in_the_rounds_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    three = planned("cache.blocks=64,32,8", *TWO[1:])
    room = max(together.design([a, b]).memory_mib for a in three for b in three if a is not b)
    assert room < together.design(three).memory_mib
    gib = (room + 1) / together.MEMORY_SHARE / 1024
    monkeypatch.setattr(together, "machine_gib", lambda: gib)
    assert measure(three, tmp_path) == {e.id: None for e in three}
    facts = {e.id: facts_of(tmp_path, e) for e in three}
    (reference,) = {one["campaign"]["reference"] for one in facts.values()}
    numbers = {e.id: {*rounds_of(tmp_path, e)} for e in three}
    others = [numbers[i] for i in numbers if i != reference]
    assert numbers[reference] == set.union(*others)
    assert not set.intersection(*others)
    assert all(len(each) == ROUNDS for each in others)
    for experiment in three:
        assert_complete(tmp_path, experiment)
        assert facts[experiment.id]["campaign"]["design"] == together.GROUPS


BROKEN = """
from kvscope.engine.overflow.recompute import Recompute


class Broken(Recompute):
    def engine_arguments(self, host_blocks):
        raise RuntimeError("the policy is broken")
"""


# ------------------------------------------------------------------ killed


def start(results: Path, *overrides: str) -> "subprocess.Popen[str]":
    words = ["run", "--multirun", "--results", str(results), *COMMON, *overrides]
    return subprocess.Popen(
        [sys.executable, "-m", "kvscope.cli", *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 500
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)


def sessions(results: Path, experiments: list[Experiment]) -> dict[str, list[dict]]:
    """The repeats that attempts have so far, by id; those of finished runs, too."""
    result = {}
    for experiment in experiments:
        directory = experiment_directory(results, experiment.id)
        attempt = directory / "attempt"
        for path in (attempt / "session.json", attempt / "run.json", directory / "run.json"):
            if path.exists():
                result[experiment.id] = (read_json(path).get("clock") or {}).get("repeats", [])
    return result


def least_repeats(results: Path, experiments: list[Experiment]) -> int:
    result = sessions(results, experiments)
    return min((len(result.get(e.id, [])) for e in experiments), default=0)


def processes_of(results: Path) -> list[psutil.Process]:
    """All that measure below a directory, and what they come from."""
    locked = [*results.glob("experiments/*/attempt/.session.lock")]
    inodes = {path.stat().st_ino for path in locked}
    found = []
    for process in psutil.process_iter():
        try:
            descriptors = [*Path(f"/proc/{process.pid}/fd").iterdir()]
            if any(
                descriptor.stat().st_ino in inodes
                for descriptor in descriptors
                if descriptor.exists()
            ):
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def ended(process: "subprocess.Popen[str]", number: int, results: Path) -> None:
    """Send a signal to a campaign: all that it started ends."""
    family = [*psutil.Process(process.pid).children(recursive=True), *processes_of(results)]
    process.send_signal(number)
    process.communicate(timeout=300)
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive
    assert processes_of(results) == []


def assert_nothing_lost(before: dict[str, list[dict]], after: dict[str, list[dict]]) -> None:
    for i, entries in before.items():
        assert after[i][: len(entries)] == entries, "a repeat was measured again"


def test_a_member_that_fails_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results, package = tmp_path / "results", tmp_path / "package"
    information = package / "broken-0.1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text("[kvscope.overflow]\nbroken = broken:Broken\n")
    (package / "broken.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", f"{package}:{os.environ['PYTHONPATH']}")
    overrides = ("overflow=recompute,broken", "cache.blocks=8", *TWO[1:])
    (good,) = planned("overflow=recompute", *overrides[1:])
    for _ in range(2):  # the failed experiment is tried again, complete ones are kept
        process = start(results, *overrides)
        output = process.communicate()[1]
        assert process.returncode == 1
        assert_complete(results, good)
        assert rounds_of(results, good) == list(range(ROUNDS))
        (broken,) = {path.name for path in (results / "experiments").iterdir()} - {good.id}
        assert f"1 of 2 failed: {broken}" in output
        facts = read_json(results / "experiments" / broken / "run.json")
        assert facts["status"] == runfile.FAILED
        assert "the policy is broken" in facts["reason"]
        assert facts["reason"] in output


def test_a_killed_campaign_goes_on_and_measures_nothing_twice(tmp_path: Path, temporaries: Path):
    both, overrides = planned(*TWO[:1], "repeats=6", "profiler=none"), (TWO[0], "repeats=6", TWO[2])
    moments: list[Callable[[], bool]] = [
        lambda: len([*tmp_path.glob("experiments/*/attempt/.session.lock")]) == 2,  # warm-up
        lambda: least_repeats(tmp_path, both) >= 1,
        lambda: least_repeats(tmp_path, both) >= 3,
        lambda: bool([*tmp_path.glob("experiments/*/run.json")]),  # one is settled
    ]
    done: dict[str, list[dict]] = {}
    for moment in moments:
        process = start(tmp_path, *overrides)
        wait_for(moment, process)
        ended(process, signal.SIGKILL, tmp_path)
        now = sessions(tmp_path, both)
        assert_nothing_lost(done, now)
        done = now
    last = start(tmp_path, *overrides)
    output = last.communicate()[1]
    assert last.returncode == 0, output
    assert_nothing_lost(done, sessions(tmp_path, both))
    for experiment in both:
        assert_complete(tmp_path, experiment)
        assert rounds_of(tmp_path, experiment) == list(range(6))
        campaign_of = facts_of(tmp_path, experiment)["campaign"]
        assert campaign_of["members"] == [e.id for e in both]
    assert [*temporaries.iterdir()] == []


TOYS = ROOT / "tests" / "toys"
TABLE = "toy_requests.parquet"


@pytest.mark.parametrize(
    "then", ["stays", "goes", pytest.param("comes", marks=pytest.mark.exhaustive)]
)
def test_a_table_of_another_package_goes_on_with_a_killed_campaign(
    tmp_path: Path, temporaries: Path, monkeypatch: pytest.MonkeyPatch, then: str
):
    """Rows of all repeats are stored, or none where only some can have them."""
    both = planned(*TWO[:1], "repeats=4", "profiler=none")
    without = os.environ["PYTHONPATH"]
    there = f"{TOYS}:{without}"
    first, second = (without if then == "comes" else there), (without if then == "goes" else there)

    def have(least: int) -> bool:
        return least_repeats(tmp_path, both) >= least

    ways = (signal.SIGKILL, signal.SIGINT) if then == "stays" else (signal.SIGKILL,)
    for least, way in enumerate(ways, 1):
        monkeypatch.setenv("PYTHONPATH", first)
        process = start(tmp_path, TWO[0], "repeats=4", TWO[2])
        wait_for(partial(have, least), process)
        ended(process, way, tmp_path)
    monkeypatch.setenv("PYTHONPATH", second)
    output = start(tmp_path, TWO[0], "repeats=4", TWO[2]).communicate()[1]
    for experiment in both:
        directory = experiment_directory(tmp_path, experiment.id)
        assert (directory / TABLE).exists() == (then == "stays"), output
        assert (TABLE in facts_of(tmp_path, experiment)["files"]) == (then == "stays")
        assert_complete(tmp_path, experiment)
        if then == "stays":
            rows = pd.read_parquet(directory / TABLE)
            one, *others = (of.drop(columns="repeat") for _, of in rows.groupby("repeat"))
            assert len(others) == 3
            for other in others:
                pd.testing.assert_frame_equal(one, other.reset_index(drop=True))
    words = ["check", *(str(experiment_directory(tmp_path, one.id)) for one in both)]
    monkeypatch.setenv("PYTHONPATH", there)
    checked = kvscope(*words)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_ended_campaign_takes_all_with_it_and_goes_on(
    tmp_path: Path, temporaries: Path, number: int
):
    both, overrides = planned(TWO[0], "repeats=4", TWO[2]), (TWO[0], "repeats=4", TWO[2])
    process = start(tmp_path, *overrides)
    wait_for(lambda: least_repeats(tmp_path, both) >= 2, process)
    ended(process, number, tmp_path)
    assert process.returncode not in (0, -number)
    assert [*temporaries.iterdir()] == []
    done = sessions(tmp_path, both)
    assert measure(both, tmp_path) == {e.id: None for e in both}
    assert_nothing_lost(done, sessions(tmp_path, both))
    for experiment in both:
        assert_complete(tmp_path, experiment)
        assert rounds_of(tmp_path, experiment) == list(range(4))


def test_killed_engines_and_zygotes_cost_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    both, zygotes = planned(TWO[0], "repeats=5", TWO[2]), []
    fork, serve, served = engines.Zygote.fork, engines.ParkedEngine.serve, []

    def forked(self: engines.Zygote, directory: Path, threads: int) -> engines.ParkedEngine:
        result = fork(self, directory, threads)
        zygotes.append(self.pid)
        return result

    def serving(self: engines.ParkedEngine, measured_in: dict, *tell: Any) -> int:
        served.append(self.pid)
        if len(served) in (3, 6):  # before its repeat
            psutil.Process(self.pid).kill()
        if len(served) == 5:
            psutil.Process(zygotes[-1]).kill()
        return serve(self, measured_in, *tell)

    monkeypatch.setattr(engines.Zygote, "fork", forked)
    monkeypatch.setattr(engines.ParkedEngine, "serve", serving)
    assert measure(both, tmp_path) == {e.id: None for e in both}
    assert len({*zygotes}) == 2
    assert len(zygotes) == 4
    for experiment in both:
        assert_complete(tmp_path, experiment)
        assert rounds_of(tmp_path, experiment) == list(range(5))
