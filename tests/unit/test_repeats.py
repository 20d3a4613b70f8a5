"""When the repeats of a run end: a rule over the throughputs measured so far."""

import math
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.statistics import estimate, half_width, half_width_share
from kvscope.judge.records import Records
from kvscope.metrics.registry import metrics_by_name
from kvscope.plan.experiment import Experiment, dump, load
from kvscope.plan.fields import MAX_REPEATS
from kvscope.plan.grid import expand
from kvscope.plan.repeats import RepeatsUntil, StoppingRule
from kvscope.tables.run_view import counted_repeats
from kvscope.tables.runfile import read_run, write_run
from kvscope.tables.throughput import throughput_tokens_per_s
from tests.run_records import facts_of

CONFIG = Path(__file__).parents[2] / "config"
UNTIL = "repeats={min:3,until:0.05,budget_s:60}"


def experiment(*overrides: str, study: str | None = None) -> Experiment:
    return expand(study, list(overrides), CONFIG).experiments[0].experiment


RULE = StoppingRule(3, 0.05, 60)


def measured(stopping: StoppingRule, throughputs: list[float], repeat_s: float = 0.0) -> int:
    """Repeats that a run makes whose repeats have these throughputs and take this time each."""
    return next(
        n for n in count(1) if stopping.ends(n, half_width_share(throughputs[:n]), n * repeat_s)
    )


@pytest.mark.parametrize(
    ("measured", "share", "elapsed_s", "ends"),
    [
        (2, 0.01, 1, False),  # before min nothing else counts
        (2, 0.01, 1e6, False),
        (3, 0.05, 1, True),
        (3, 0.051, 1, False),
        (3, math.nan, 1, False),  # an unknown width is not narrow
        (30, 0.051, 59.9, False),
        (30, 0.051, 60, True),
        (3, math.nan, 60, True),
        (MAX_REPEATS, 0.051, 1, True),
    ],
)
def test_it_ends_from_min_on_when_the_interval_is_narrow_or_the_budget_spent(
    measured: int, share: float, elapsed_s: float, ends: bool
) -> None:
    assert RULE.ends(measured, share, elapsed_s) is ends


@given(st.integers(1, 50), st.integers(0, 60), st.floats(0, 1e9) | st.just(math.nan))
def test_a_number_of_repeats_ends_there_whatever_was_measured(
    repeats: int, made: int, measured: float
) -> None:
    assert StoppingRule.of(repeats).ends(made, measured, measured) is (made >= repeats)


@given(
    st.lists(st.floats(1, 1e6), min_size=40, max_size=40),
    st.integers(2, 6),
    st.floats(1e-3, 1),
    st.floats(1, 30),
)
def test_it_ends_where_it_may_and_not_before_it_must(
    throughputs: list[float], least: int, until: float, budget_s: float
) -> None:
    """Repeats of one second."""
    stopping = StoppingRule(least, until, budget_s)
    ended = measured(stopping, throughputs, repeat_s=1.0)
    assert least <= ended <= max(least, math.ceil(budget_s))
    for earlier in range(least, ended):
        assert half_width_share(throughputs[:earlier]) > until
    result = stopping.facts(ended, half_width_share(throughputs[:ended]))
    assert result["measured"] == ended
    assert result["reached"] == (result["half_width_share"] <= until)
    assert result["reached"] or ended >= budget_s


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=20))
def test_the_interval_is_students(values: list[float]) -> None:
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), error or 1e-300)
    assert half_width(values) == pytest.approx((high - low) / 2, rel=1e-6, abs=1e-6)
    interval = estimate(values)
    assert interval.high - interval.value == pytest.approx(half_width(values), abs=1e-6)


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [1.0, math.nan], [1.0, math.inf]])
def test_an_interval_that_is_not_defined_is_not_precise(values: list[float]) -> None:
    assert math.isnan(half_width_share(values))
    assert RULE.is_reached(half_width_share(values)) is False
    assert RULE.facts(len(values), half_width_share(values))["half_width_share"] is None


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.04])
def test_where_repeats_are_alike_the_rule_keeps_what_the_interval_promises(spread: float) -> None:
    """Share of simulated runs whose interval holds the true mean; the document has more."""
    numbers = np.random.default_rng(1).normal(1, spread, (2000, 40)).tolist()
    stopping, held = StoppingRule(5, 0.05, 120), 0
    for throughputs in numbers:
        interval = estimate(throughputs[: measured(stopping, throughputs)])
        held += interval.low <= 1 <= interval.high
    assert held / len(numbers) > 0.935


def test_a_number_is_that_many_repeats() -> None:
    assert experiment("repeats=7").stopping == StoppingRule(7)
    assert StoppingRule.of(2).facts(2, 0.3) == {
        **{"min": 2, "until": None, "budget_s": None},
        **{"measured": 2, "half_width_share": 0.3, "reached": None},
    }


def test_a_number_keeps_its_experiments_id() -> None:
    """Leaving `repeats` as a number leaves its canonical text, and so every id, as it was."""
    assert '"repeats":3' in experiment("repeats=3").canonical_json
    assert experiment(UNTIL).id != experiment("repeats=3").id


def test_the_rule_is_part_of_the_experiment_and_of_its_file(tmp_path: Path) -> None:
    planned = experiment(UNTIL)
    assert planned.repeats == RepeatsUntil(min=3, until=0.05, budget_s=60)
    path = tmp_path / "experiment.yaml"
    path.write_text(dump(planned))
    assert load(path) == planned
    others = [experiment(UNTIL, f"repeats.{key}") for key in ("min=4", "until=0.1", "budget_s=9")]
    assert len({planned.id, *(other.id for other in others)}) == 4


@pytest.mark.packages
def test_a_study_gives_the_rule_and_the_command_line_changes_a_part_of_it() -> None:
    rule = experiment(study="quickstart").stopping
    assert rule.until == 0.05
    shorter = experiment("repeats.budget_s=4", study="quickstart")
    assert shorter.stopping == StoppingRule(rule.min, rule.until, 4)
    assert experiment("repeats=2", study="quickstart").stopping == StoppingRule(2)


def test_numbers_and_rules_make_a_grid_and_are_told_in_words() -> None:
    plan = expand(None, ["repeats=3,5,{min:3,until:0.05,budget_s:60}"], CONFIG)
    told = [planned.varied["repeats"] for planned in plan.experiments]
    assert told == [3, 5, "min 3, until 0.05, budget_s 60"]


GONE = (
    "repeats.max (9) is not a key any more: repeats.budget_s, the seconds after which repeats end"
)
REFUSED = {
    "repeats={min:3,until:0.05}": "repeats.budget_s is missing (the command line)",
    "repeats={min:3,budget_s:60}": "repeats.until is missing (the command line)",
    "repeats={min:1,until:1,budget_s:9}": "repeats.min is 1 (the command line) but must be at",
    "repeats={min:1001,until:1,budget_s:9}": "repeats.min is 1001 (the command line) but must be",
    "repeats={min:2,until:0,budget_s:9}": "repeats.until is 0 (the command line) but must be more",
    "repeats={min:2,until:1,budget_s:0}": "repeats.budget_s is 0 (the command line) but must be",
    "repeats={min:3,max:9,until:1}": GONE,
    "repeats={mim:3,until:1,budget_s:9}": "repeats.mim (the command line) is not a key",
    "repeats=[3]": "repeats is [3] (the command line) but must be a whole number",
    "repeats.until=0.05": "repeats.until (the command line) cannot be set where repeats is 3 (",
}


@pytest.mark.parametrize(("override", "sentence"), REFUSED.items(), ids=list(REFUSED))
def test_a_rule_that_cannot_be_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(BadInput) as error:
        experiment(override)
    assert sentence in str(error.value)


def records(*makespans: float, facts: dict[str, Any] | None = None) -> Records:
    """A request of 60 tokens in each repeat, served in this time."""
    empty = {table.name: table.empty() for table in tables.HOST_TABLES}
    requests = pd.DataFrame(
        {
            "repeat": range(len(makespans)),
            "prompt_tokens": 50,
            "output_tokens": 10,
            "aborted": False,
            "arrival_s": 0.5,
            "finished_s": [0.5 + makespan for makespan in makespans],
        }
    )
    return Records(Path(), **empty | {"facts": facts_of(**facts or {}), "requests": requests})


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=4))
def test_the_throughput_that_ends_the_repeats_is_the_metric(makespans: list[float]) -> None:
    metric = metrics_by_name()["throughput_tokens_per_s"].of
    for repeat in records(*makespans).repeats():
        assert throughput_tokens_per_s(repeat.requests) == pytest.approx(metric(repeat))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=10))
def test_metrics_are_of_all_repeats_but_those_that_were_served_for_their_profile(
    repeats: list[tuple[bool, float]],
) -> None:
    """Other load excludes no repeat; without others, profiled repeats count."""
    entries = [
        {"repeat": number, "start_ns": 0, "duration_s": 1.0, "profiled": profiled}
        for number, (profiled, _) in enumerate(repeats)
    ]
    load = [
        {"repeat": n, "cores": 1, "other_cpu_share": busy} for n, (_, busy) in enumerate(repeats)
    ]
    run = records(*[2] * len(repeats), facts={"clock": {"repeats": entries}, "load": load})
    numbers = range(len(repeats))
    expected = [number for number in numbers if not repeats[number][0]] or [*numbers]
    assert [repeat.repeat for repeat in run.valid_repeats()] == expected
    assert [entry.repeat for entry in counted_repeats(run.record)] == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("repeats", {"min": 3}),
        ("repeats", {"min": 3, "until": -1, "measured": 3}),
        ("repeats", {"min": 3, "until": 0.05, "budget_s": 0, "measured": 3}),
        ("repeats", 3),
        ("load", [{"cores": 2}]),
        ("load", {"repeat": 0}),
    ],
)
def test_run_json_with_something_else_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    sound = {"experiment_id": "one", "status": "complete", "files": {}}
    told = {"repeats": RULE.facts(3, 0.01), "load": [{"repeat": 0}]}
    write_run(tmp_path, sound | told)
    assert read_run(tmp_path)["repeats"]["reached"] is True
    write_run(tmp_path, sound | {key: value})
    with pytest.raises(BadInput, match=rf"run\.json.*{key}"):
        read_run(tmp_path)
