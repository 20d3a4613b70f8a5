"""Published values beside ours: ratio, tolerance and verdict."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from kvscope.base.statistics import Interval
from kvscope.report.data import StudyData
from kvscope_model.hardware import hardware as data
from kvscope_paper.agreement import CORRECTED, COUNT, MEASURED, PREDICTED, SHARE, STALLED
from kvscope_paper.agreement import FITTED as FITTED_TIMES
from kvscope_paper.comparison import AGREES, DIFFERS, NOT_RUN, Comparison, by_kind
from kvscope_paper.figure_errors import figure_errors
from kvscope_paper.further import further
from kvscope_paper.predictive import HARDWARE, left_out_errors
from kvscope_paper.published.cold_start import MOST_S, from_idle_s
from kvscope_paper.published.figures import Point, points
from kvscope_paper.published.repeats import repeat_limit
from kvscope_paper.published.times import FIGURES as FITTED

DEVICE = "modeled a100-40gb"


def compared(
    point: Point, factor: float = 1.0, unit: str = "s", device: str = DEVICE
) -> Comparison:
    value = point.value * factor
    return Comparison(point, device, None, value, math.nan, math.nan, value, unit)


POINT = next(points(("10a",)))


LIMIT = math.exp(repeat_limit())


@pytest.mark.parametrize(
    ("factor", "unit", "verdict"),
    [
        (1.0, "s", AGREES),
        (LIMIT * 0.9999, "s", AGREES),
        (LIMIT * 1.0001, "s", DIFFERS),
        (1.0001 / LIMIT, "s", AGREES),
        (0.9999 / LIMIT, "s", DIFFERS),
        (0.0, "s", DIFFERS),
        (1.0, "passes", AGREES),
        (1.001, "passes", DIFFERS),
        (math.nan, "s", NOT_RUN),
    ],
)
def test_counts_agree_if_equal_and_times_as_closely_as_repeats_do(factor, unit, verdict):
    assert compared(POINT, factor, unit).verdict == verdict


def test_a_throughput_and_its_time_agree_alike():
    """100 tokens take 2 s in the paper, and here a little less than the limit's multiple of
    that."""
    time = replace(POINT, value=2.0)
    rate = replace(POINT, value=50.0)
    for factor in (LIMIT * 0.999, LIMIT * 1.001):
        assert compared(time, factor).verdict == compared(rate, 1 / factor, "tokens/s").verdict


def test_a_share_agrees_if_it_is_equal_as_published():
    (point, *_) = (p for p in points(("11b",)) if p.table.metric == "kv_block_utilization")
    for off, verdict in ((0.00049, AGREES), (-0.00049, AGREES), (0.00051, DIFFERS)):
        assert compared(point, 1 + off / point.value, "share").verdict == verdict


def test_every_share_says_in_which_steps_it_was_published():
    """Each published share is a multiple of them."""
    shares = [p for p in points() if "utilization" in p.table.metric]
    assert all(p.table.resolution == 0.001 for p in shares)
    assert all(round(p.value, 3) == p.value for p in shares)
    assert {p.table.resolution for p in points() if p not in shares} == {None}


def test_the_published_values_themselves_agree_everywhere():
    assert {compared(point).verdict for point in points()} == {AGREES}


def test_a_row_says_whether_the_papers_figure_shows_its_value():
    shown = {(p.settings["model.name"], compared(p).row["in_paper"]) for p in points(("3a",))}
    assert shown == {("yarn-llama-2-7b", True), ("llama-3.1-8b", False), ("opt-13b", False)}


def test_a_cold_start_adds_its_bound_at_most():
    assert from_idle_s(10.0, 0, 0) == pytest.approx(10.0 + MOST_S)
    assert from_idle_s(0.01, 0, 0) < 0.01 * 1.2


def test_errors_of_the_calibration_equal_errors_on_the_modeled_a100():
    results = [
        *(compared(point, 1.1) for point in points(("3a", "8b"))),
        *(compared(point, 2.0, device="cuda") for point in points(("3a",))),
        *(compared(point, 1.0, "passes") for point in points(("4b",))),
        *(compared(point, 2.0) for point in points(("4b",)) if point.stalled),
        *(compared(point, math.nan) for point in points(("9",))),
    ]
    errors = {
        figure_error["figure"]: figure_error
        for figure_error in figure_errors(results, left_out_errors(results))
    }
    assert errors.keys() == {"3a", "8b"}
    assert all(error["median_error"] == pytest.approx(0.1) for error in errors.values())
    assert (errors["3a"]["fitted"], errors["8b"]["fitted"]) == (True, False)
    assert errors["3a"]["left_out"] > 0
    assert errors["8b"]["left_out"] is None
    assert (errors["8b"]["coverage"].held, errors["8b"]["coverage"].times) == (10, 10)


def test_the_figures_that_are_fitted_are_those_of_the_calibration():
    result = figure_errors([compared(point) for point in points()], {})
    assert {row["figure"] for row in result if row["fitted"]} == set(FITTED)


def test_each_value_counts_once_and_among_its_own_kind():
    """All of the study's 1,075 values, but 64 that are given and 21 that two tables have."""
    results = [compared(point, unit=unit_in(point)) for point in points()]
    kinds = {count.kind: count for count in by_kind([*results, *results])}
    assert sum(count.values for count in kinds.values()) == 1075 - 64 - 21
    assert kinds[FITTED_TIMES].values == 187 + 12
    assert kinds[CORRECTED].values == 54 - 21
    assert kinds[STALLED].values == 33 + 9
    assert kinds[COUNT].values == 224 + 4
    assert kinds[SHARE].values == 303
    assert [count.kind for count in by_kind(results)] == [
        COUNT,
        SHARE,
        PREDICTED,
        CORRECTED,
        FITTED_TIMES,
        STALLED,
    ]
    assert all(count.agree == count.values for count in kinds.values())


def unit_in(point: Point) -> str:
    metric = point.table.metric
    if metric == "forward_passes":
        return "passes"
    return "tokens" if metric in ("scheduled_tokens", "tokens_written", "k_reads") else "s"


def test_no_time_is_fitted_or_predicted_for_a_measured_device():
    results = [compared(point, unit=unit_in(point), device="cuda") for point in points()]
    assert [count.kind for count in by_kind(results)] == [COUNT, SHARE, STALLED, MEASURED]


def test_a_value_of_figure_4b_has_a_stall_if_it_differs_without_it():
    with_stalls, without = (
        {str(sorted(p.settings.items(), key=str)): p for p in points(("4b",)) if p.table.title == t}
        for t in ("Throughput by batching and context window", "The same without the host's stalls")
    )
    assert with_stalls.keys() == without.keys()
    for settings, point in with_stalls.items():
        assert point.stalled == (point.value != without[settings].value), settings


def run_of(name: str, policy: str, seconds: float):
    numbers = dict.fromkeys(("resume_overhead_as_published_s", "resume_overhead_net_s"), seconds)
    numbers |= {"makespan_s": 100 + seconds, "preemptions": 1.0}
    return SimpleNamespace(
        id=f"{name}-{policy}",
        flat={"cache.blocks": name, "overflow": policy},
        settings={"overflow": {"name": policy}},
        number=lambda metric: Interval(numbers[metric], numbers[metric], numbers[metric]),
        believed=lambda metric: True,
    )


def test_further_policies_are_shown_once_beside_the_papers_in_the_same_experiment():
    costs = {"recompute": 2.0, "swap": 1.0, "activation": 0.5, "adaptive": 0.6}
    first, second = (
        {policy: run_of(name, policy, cost) for policy, cost in costs.items()} for name in "ab"
    )
    runs = [*first.values(), second["recompute"], second["activation"]]
    # The extended abstract shows Figure 8b's experiments again.
    results = [
        replace(compared(point), run=first[point.settings["overflow.name"]])
        for point in points(("8b", "abstract 2b"))
        if point.x == 125
    ]
    without_intervals = SimpleNamespace(ratio=lambda *_: None)
    study = SimpleNamespace(complete=runs, estimates=without_intervals)
    (row,) = further(cast(StudyData, study), results)
    assert (row.figure, row.experiment) == ("8b", "figure8b-1k.csv, KV cache 125 blocks")
    assert row.seconds == costs
    assert row.by_net
    assert row.by_makespan
    assert row.by_net.best is first["activation"]
    assert row.by_net.share == pytest.approx(0.2)
    assert row.by_makespan.share == pytest.approx(0.1 / 100.5)


def test_every_fitted_number_has_an_interval_with_itself_in_it():
    numbers = dict(data.read(HARDWARE).fitted())
    assert all(0 < number.low <= number.value <= number.high for number in numbers.values())
    assert all(number.low < number.high for number in numbers.values())
