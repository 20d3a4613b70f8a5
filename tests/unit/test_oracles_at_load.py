"""Oracles hold at any speed: a run whose engine waits for a CPU, anywhere, is as sound as before.

The tables are those that the engine would have recorded if its thread had lost the CPU at some
instants: every reading of a clock after such an instant is later by what it waited.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.judge.oracles import profiled
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records, read_records
from kvscope.tables.runfile import NSYS_EXPORT
from kvscope.tables.stalls import find_stalls
from kvscope.tables.verdict import VIOLATED

from .report_fixture import Fake, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

KINDS = {
    "recompute": Fake({"kind": "recompute"}, "recompute"),
    "swap": Fake({"kind": "swap"}, "swap, prefill first"),
}
BESIDE_S = 1e-9  # a wait just before or after a reading
INSIDE_S = 2e-9  # the inner of two readings that were taken right after each other
GPU = {"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 * 2**30}
TIMES = ("time_s", "first_scheduled_s", "first_token_s", "finished_s")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records]:
    results = tmp_path_factory.mktemp("results")
    return {name: read_records(write_experiment(fake, results)) for name, fake in KINDS.items()}


def violated(run: Records) -> dict[str, str]:
    return {
        verdict.name: verdict.first for verdict in judge_tables(run) if verdict.state == VIOLATED
    }


@dataclass(frozen=True)
class Wait:
    """The thread is without a CPU for `seconds`, from the instant `at` of a repeat on."""

    repeat: int
    at: float
    seconds: float


@dataclass(frozen=True)
class Loaded:
    """Clock readings of a run with these waits; everything else takes `slower` times as long."""

    waits: Sequence[Wait]
    slower: float = 1.0

    def later(self, repeat: pd.Series, instant: pd.Series) -> pd.Series:
        """Reading of a clock at an instant."""
        result = self.slower * instant.astype(float)
        for wait in self.waits:
            result = result + wait.seconds * ((repeat == wait.repeat) & (instant > wait.at))
        return result

    def took(self, repeat: pd.Series, start: pd.Series, seconds: pd.Series) -> pd.Series:
        """Length of an interval by a clock."""
        return self.later(repeat, start + seconds) - self.later(repeat, start)

    def waited_s(self, repeat: int) -> float:
        """The seconds of a repeat's waits."""
        return sum(wait.seconds for wait in self.waits if wait.repeat == repeat)

    def run(self, run: Records) -> Records:
        """The records of the run."""
        tables = {
            "requests": self._instants(run.requests),
            "steps": self._steps(run.steps),
            "layers": self._intervals(run.layers),
            "preemptions": self._preemptions(run.preemptions),
            "transfers": self._transfers(run.transfers),
        }
        return run.variant(**tables, facts=self._facts(run.facts))

    def _instants(self, frame: pd.DataFrame) -> pd.DataFrame:
        known = {name: frame[name] for name in TIMES if name in frame}
        return frame.assign(**{n: self.later(frame["repeat"], at) for n, at in known.items()})

    def _intervals(self, frame: pd.DataFrame) -> pd.DataFrame:
        repeat, start = frame["repeat"], frame["start_s"]
        took = self.took(repeat, start, frame["duration_s"])
        return frame.assign(start_s=self.later(repeat, start), duration_s=took)

    def _steps(self, steps: pd.DataFrame) -> pd.DataFrame:
        repeat, start = steps["repeat"], steps["start_s"]
        scheduled = start + steps["schedule_s"]
        parts = {
            "schedule_s": self.took(repeat, start, steps["schedule_s"]),
            "forward_s": self.took(repeat, scheduled, steps["forward_s"]),
        }
        made = self._intervals(steps).assign(**parts)
        return made.assign(stalled=find_stalls(made))

    def _preemptions(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Costs are left out: they are sums of other columns."""
        repeat, made = frame["repeat"], self._instants(frame).assign(cost_s=np.nan)
        lost = frame[frame["event"] == "preempt"].groupby(["repeat", "request_id"])["time_s"]
        began = frame["time_s"] - frame["wait_s"]
        assert len(lost)
        return made.assign(wait_s=self.took(repeat, began, frame["wait_s"]))

    def _transfers(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Copies are timed twice: by the clock of their pass, and by a stopwatch inside of that."""
        repeat, start = frame["repeat"], frame["start_s"]
        took_s = self.took(repeat, start, frame["end_s"] - start)
        begun_s = self.later(repeat, start)
        inner_s = self.took(repeat, start + INSIDE_S, frame["copy_s"] - 2 * INSIDE_S)
        return frame.assign(start_s=begun_s, end_s=begun_s + took_s, copy_s=inner_s)

    def _facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        facts = copy.deepcopy(facts)
        for entry in facts["clock"]["repeats"]:
            own_s, waited_s = self.slower * entry["duration_s"], self.waited_s(entry["repeat"])
            cpu_s = dict.fromkeys(("cpu_s", "thread_cpu_s", "ran_s"), own_s)
            took_s = dict.fromkeys(("duration_s", "raw_s"), own_s + waited_s)
            entry |= cpu_s | took_s | {"waited_s": waited_s}
        return facts


def instants(run: Records) -> list[tuple[int, float]]:
    """The readings of the engine's clock, each with its repeat."""
    steps, layers, copies = run.steps, run.layers, run.transfers
    columns = [
        (steps["repeat"], steps["start_s"]),
        (steps["repeat"], steps["start_s"] + steps["schedule_s"]),
        (steps["repeat"], steps["start_s"] + steps["duration_s"]),
        (layers["repeat"], layers["start_s"]),
        (layers["repeat"], layers["start_s"] + layers["duration_s"]),
        (copies["repeat"], copies["start_s"]),
        (copies["repeat"], copies["end_s"]),
    ]
    result = pd.concat([pd.DataFrame({"repeat": r, "at": at}) for r, at in columns]).dropna()
    return [(int(repeat), float(at)) for repeat, at in result.itertuples(index=False)]


WAITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from([-BESIDE_S, BESIDE_S]), st.floats(1e-6, 2.0)),
    max_size=12,
)


@pytest.mark.parametrize("name", KINDS)
@given(chosen=WAITS, slower=st.floats(1, 5))
@settings(max_examples=10)
def test_waiting_for_a_cpu_violates_nothing(
    name: str, chosen: list[tuple[int, float, float]], slower: float, runs: dict[str, Records]
) -> None:
    places = instants(runs[name])
    waits = []
    for number, beside, seconds in chosen:
        repeat, at = places[number % len(places)]
        waits.append(Wait(repeat, at + beside, seconds))
    assert violated(Loaded(waits, slower).run(runs[name])) == {}


Where = Callable[[Records], Iterable[tuple[int, float]]]


def after_passes(run: Records) -> Iterable[tuple[int, float]]:
    steps = run.steps
    ends = steps["start_s"] + steps["duration_s"] + BESIDE_S
    return zip(steps["repeat"], ends, strict=True)


def before_stopwatches(run: Records) -> Iterable[tuple[int, float]]:
    rows = run.transfers
    return zip(rows["repeat"], rows["start_s"] + BESIDE_S, strict=True)


def after_the_last_token(run: Records) -> Iterable[tuple[int, float]]:
    last = run.requests.groupby("repeat", as_index=False)["finished_s"].max()
    return zip(last["repeat"], last["finished_s"] + BESIDE_S, strict=True)


UNSEEN: dict[str, tuple[Where, str]] = {
    "between passes": (after_passes, "passes_apart"),
    "before the stopwatch of every copy": (before_stopwatches, "copy_time_wrong"),
    "after the last token": (after_the_last_token, "repeats_differ"),
}


@pytest.mark.parametrize(("where", "oracle"), UNSEEN.values(), ids=list(UNSEEN))
def test_time_that_passes_where_none_should_is_caught_unless_the_engine_waited(
    where: Where, oracle: str, runs: dict[str, Records]
) -> None:
    """Half a second at each place: what forged durations leave, or a machine at load."""
    run = runs["swap"]
    waits = [Wait(repeat, at, 0.5) for repeat, at in where(run)]
    loaded = Loaded(waits).run(run)
    for gpus in ([], [GPU]):
        assert oracle not in violated(loaded.variant(facts=on(gpus, loaded)))
        ran = on(gpus, loaded)
        for entry in ran["clock"]["repeats"]:
            entry |= dict.fromkeys(("thread_cpu_s", "cpu_s"), entry["duration_s"])
        assert oracle in violated(loaded.variant(facts=ran)), "it ran all the time"
        never_ready = on(gpus, loaded)
        for entry in never_ready["clock"]["repeats"]:
            entry["waited_s"] = 0.0
        caught = oracle in violated(loaded.variant(facts=never_ready))
        no_pass_is_there = oracle == "passes_apart" and not gpus
        assert caught is not no_pass_is_there, "a thread that waits for a page has no CPU either"


def on(gpus: list[dict[str, Any]], run: Records) -> dict[str, Any]:
    """The facts of a run on a machine with these GPUs."""
    facts = copy.deepcopy(run.facts)
    facts["hardware"]["gpus"] = gpus
    return facts


@pytest.mark.parametrize(
    ("load", "caught"),
    [
        ({"waiting_share": 0.999}, False),
        ({"steal_share": 0.5, "cores": 2}, False),
        ({"waiting_share": None}, True),
        ({"waiting_share": 0.001}, True),
    ],
)
def test_without_counts_of_threads_the_load_of_the_machine_is_the_witness(
    load: dict[str, Any], caught: bool, runs: dict[str, Records]
) -> None:
    run = runs["swap"]
    loaded = Loaded([Wait(repeat, at, 0.5) for repeat, at in after_passes(run)]).run(run)
    facts = on([GPU], loaded)
    for entry in facts["clock"]["repeats"]:
        entry["waited_s"] = None
    for entry in facts["load"]:
        entry |= load
    assert ("passes_apart" in violated(loaded.variant(facts=facts))) is caught


@pytest.mark.parametrize("every", [3, 7])
def test_a_profiler_s_ranges_agree_where_the_engine_waits_between_two_readings(
    every: int, runs: dict[str, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range is read just outside of the forward part; some passes wait in between."""
    run = runs["recompute"]
    steps = run.steps
    begin = steps["start_s"] + steps["schedule_s"]
    waits = [
        Wait(int(repeat), at - BESIDE_S, 0.3)
        for number, (repeat, at) in enumerate(zip(steps["repeat"], begin, strict=True))
        if number % every == 0
    ]
    loaded = Loaded(waits)
    early = loaded.later(steps["repeat"], begin - INSIDE_S)
    ends = loaded.later(steps["repeat"], begin + steps["forward_s"] + INSIDE_S)
    ranges = steps[["repeat", "step"]].assign(
        start_ns=(1e9 * (1000.0 * steps["repeat"] + early)).astype("int64"),
        end_ns=(1e9 * (1000.0 * steps["repeat"] + ends)).astype("int64"),
    )
    monkeypatch.setattr(profiled, "forward_passes", lambda path: ranges)
    facts = copy.deepcopy(run.facts)
    facts["files"][NSYS_EXPORT] = {"bytes": 1, "sha256": "0" * 64}
    facts["profiler"] |= {"used": "nsys", "reason": None}
    assert violated(loaded.run(run.variant(facts=facts))) == {}
