"""A run repeats until its throughput is known as well as was asked for, or says that it is not."""

import pytest

from .conftest import AMPLE, Run, Runner

pytestmark = pytest.mark.engine

EASY = (AMPLE, "repeats={min:2,until:1e9,budget_s:60}")
IMPOSSIBLE = (AMPLE, "repeats={min:2,until:1e-9,budget_s:0.01}")


def numbers(made: Run) -> dict[str, set[int]]:
    """The repeats that each part of a run tells of."""
    tables = ("requests", "steps", "batch", "layers")
    return {
        **{name: {*made.table(name)["repeat"]} for name in tables},
        "clock": {entry["repeat"] for entry in made.facts["clock"]["repeats"]},
        "load": {entry["repeat"] for entry in made.facts["load"]},
    }


@pytest.mark.parametrize("case", [EASY, IMPOSSIBLE], ids=["easy", "never"])
def test_every_part_of_a_run_has_the_repeats_that_were_measured(run: Runner, case):
    made = run(*case)
    measured = {*range(made.facts["repeats"]["measured"])}
    assert all(found == measured for found in numbers(made).values())


def test_it_ends_when_the_throughput_is_known(run: Runner):
    rule = run(*EASY).facts["repeats"]
    assert (rule["measured"], rule["reached"]) == (2, True)


def test_it_says_that_the_throughput_is_not_known_when_the_budget_is_spent(run: Runner):
    rule = run(*IMPOSSIBLE).facts["repeats"]
    assert (rule["measured"], rule["reached"]) == (2, False)


@pytest.mark.parametrize("case", [EASY, IMPOSSIBLE], ids=["easy", "never"])
def test_the_half_width_that_ends_it_is_that_of_its_rounds(run: Runner, case: tuple[str, str]):
    made = run(*case)
    entries = [e for e in made.facts["clock"]["repeats"] if not e.get("profiled")]
    assert [entry["round"]["number"] for entry in entries] == [*range(len(entries))]
    share, until = made.facts["repeats"]["half_width_share"], made.facts["repeats"]["until"]
    assert share > 0
    assert made.facts["repeats"]["reached"] == (share <= until)


def test_a_number_of_repeats_is_that_number(run: Runner):
    facts = run(AMPLE).facts["repeats"]
    assert (facts["min"], facts["measured"]) == (2, 2)
    assert facts["until"] is facts["budget_s"] is facts["reached"] is None


def test_load_beside_a_repeat_is_recorded(run: Runner):
    for entry in run(AMPLE).facts["load"]:
        assert 0 <= entry["steal_share"] <= 1
        assert 0 <= entry["other_cpu_share"] <= 1
