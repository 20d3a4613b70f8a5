"""The conditions of a measurement, in a line, a chart and details, whatever they were."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.report.conditions import conditions, draw, missed_widths
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.words import NBSP
from tests.run_records import record_of

CAMPAIGN = "0123456789ab"


def ran(
    label: str,
    waits: list[float | None],
    number: int | tuple[int, ...] | None = 0,
    others: float = 0.0,
    design: str = "rounds",
    durations: list[float] | None = None,
    began_ns: int = 0,
    profiled: int | None = None,
    **facts: Any,
) -> ReportedRun:
    """A run with a repeat for each share of waiting, each of a round.

    `number` is its place in all of them, or in each.
    """
    places = number if isinstance(number, tuple) else (number,) * len(waits)
    clock = [
        {
            "repeat": repeat,
            "start_ns": (10 * repeat + (places[repeat] or 0)) * 10**9,
            "duration_s": durations[repeat] if durations else 1.0,
            "ran_s": None if wait is None else 1 - wait,
            "waited_s": wait,
        }
        | ({} if (place := places[repeat]) is None else {"round": turn(repeat, place)})
        | ({"profiled": True} if repeat == profiled else {})
        for repeat, wait in enumerate(waits)
    ]
    load = [{"repeat": n, "cores": 2, "other_cpu_share": others} for n in range(len(waits))]
    told = {"clock": {"run_start_utc_ns": began_ns, "repeats": clock}, "load": load}
    if number is not None:
        told["campaign"] = {"id": CAMPAIGN, "design": design, "members": ["a", "b"]}
    return ReportedRun(label, label, {}, Path("nowhere"), record=record_of(**told | facts))


def turn(number: int, place: int) -> dict[str, Any]:
    return {"campaign": CAMPAIGN, "number": number, "place": place}


def study(*runs: ReportedRun) -> StudyData:
    return StudyData("s", "", "", (), runs)


def line_of(*runs: ReportedRun) -> str:
    """The line, with spaces that may break."""
    return conditions(study(*runs)).line.replace(NBSP, " ")


def test_rounds_are_told_with_waiting_load_and_drift() -> None:
    line = line_of(ran("a", [0.1, 0.3], 0, 0.45), ran("b", [0.1, 0.3], 1, 0.45))
    assert line == (
        "2 rounds of 2 experiments in random order; "
        "engines waited for a CPU 20 % of their time (10 % to 30 %); "
        "other processes used 0.9 of 2 CPUs; "
        "the machine's speed varied by ± 18 %."
    )


@pytest.mark.parametrize(
    ("design", "told"),
    [
        ("rounds", "2 rounds of 2 experiments in random order; "),
        ("sittings", "2 rounds of 2 experiments in random order, one engine at a time; "),
    ],
)
def test_the_design_of_the_campaign_is_told(design: str, told: str) -> None:
    runs = [ran(label, [0.0, 0.0], n, design=design) for n, label in enumerate("ab")]
    assert line_of(*runs).startswith(told)


def test_groups_are_told_with_the_rounds_of_each_experiment() -> None:
    one, other = ran("a", [0.0, 0.0], 0, design="groups"), ran("b", [0.0] * 3, 1, design="groups")
    assert other.record.campaign
    other.record.campaign.members[:] = ["b", "c"]
    told = "2 experiments in 2 groups of 2 to 3 rounds in random order; "
    assert line_of(one, other).startswith(told)


def test_runs_of_their_own_are_told_as_such() -> None:
    assert line_of(ran("a", [0.0] * 3, None)).startswith(
        "1 experiment by itself, 3 repeats; engines waited for a CPU 0 % of their time"
    )
    two = ran("a", [0.0], None), ran("b", [0.0], None)
    assert line_of(*two).startswith("2 experiments by themselves, 2 repeats; ")


def test_what_the_system_did_not_tell_is_left_out() -> None:
    one = ran("a", [None, None], None, load=[{"repeat": number} for number in range(2)])
    assert line_of(one) == (
        "1 experiment by itself, 2 repeats; the machine's speed varied by ± 0 %."
    )


@pytest.mark.parametrize("facts", [{"time_source": "modeled"}, {"load": []}])
def test_modeled_and_imported_runs_have_no_conditions(facts: dict[str, Any]) -> None:
    found = study(ran("a", [0.5, 0.5], **facts))
    assert conditions(found).line == ""
    assert draw(found) is None


@given(st.lists(st.floats(0, 0.9), min_size=2, max_size=8))
def test_speed_is_that_of_an_engine_while_it_runs(waits: list[float]) -> None:
    """An engine that computes for as long in each repeat and waits besides has one speed."""
    durations = [2.0 / (1 - wait) for wait in waits]
    drawing = draw(study(ran("a", list(waits), 0, durations=durations)))
    assert drawing is not None
    (view,) = drawing.views
    assert view.data["repeats"]["speed"].tolist() == pytest.approx([100.0] * len(waits))
    assert view.data["repeats"]["waiting"].tolist() == pytest.approx([100 * w for w in waits])


def test_a_round_is_a_point_of_the_line_and_each_repeat_a_point() -> None:
    runs = [ran("a", [0.1, 0.2, 0.3], 0), ran("b", [0.3, 0.4, 0.5], 1)]
    drawing = draw(study(*runs))
    assert drawing is not None
    data = drawing.views[0].data
    assert len(data["repeats"]) == 6
    assert data["means"]["round"].tolist() == [1, 2, 3]
    assert data["means"]["waiting"].tolist() == pytest.approx([20, 30, 40])


def test_repeats_of_runs_by_themselves_are_in_order_of_time() -> None:
    later, sooner = ran("a", [0.1, 0.1], None, began_ns=10**12), ran("b", [0.2, 0.2], None)
    drawing = draw(study(later, sooner))
    assert drawing is not None
    assert drawing.views[0].data["repeats"]["experiment"].tolist() == ["b", "b", "a", "a"]


def test_a_repeat_that_was_served_for_its_profile_is_in_none_of_it() -> None:
    one = ran("a", [0.1, 0.1, 0.9], 0, profiled=2)
    assert "10 % of their time (10 % to 10 %)" in line_of(one)


def test_orders_and_each_experiments_circumstances_are_details() -> None:
    first, second = ran("a", [0.0, 0.0], (0, 1)), ran("b", [0.0, 0.0], (1, 0))
    object.__setattr__(first, "circumstances", ("stalled (repeat 1: 7 % of the makespan)",))
    found = conditions(study(first, second))
    assert found.orders == ("Round 1: a, b", "Round 2: b, a")
    assert found.experiments == (("a", "stalled (repeat 1: 7 % of the makespan)"),)


def rule(share: float | None, reached: bool = False) -> dict[str, Any]:
    width = {"half_width_share": share, "reached": reached}
    return {"repeats": {"min": 5, "until": 0.05, "budget_s": 120, "measured": 2} | width}


def test_a_width_that_was_not_reached_is_said_once() -> None:
    together = [ran(label, [0.0, 0.0], n, **rule(0.1)) for n, label in enumerate("ab")]
    told = "± 10 % after 120 s; ± 5 % was asked, which takes about 8 rounds in 44 s."
    assert missed_widths(study(*together)) == told
    assert missed_widths(study(ran("a", [0.0, 0.0], **rule(0.04, reached=True)))) == ""


def test_of_several_widths_the_one_with_most_to_go_is_said() -> None:
    found = [ran("a", [0.0] * 2, None, **rule(0.1)), ran("b", [0.0] * 2, None, **rule(0.2))]
    assert missed_widths(study(*found)).startswith(
        "2 intervals are wider than asked; of b: ± 20 % after 120 s; ± 5 % was asked, "
    )
