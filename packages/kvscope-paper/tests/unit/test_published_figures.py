"""The published values, and the study that has an experiment for each of them."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from kvscope.metrics.registry import metrics_by_name
from kvscope.plan.grid import expand
from kvscope.plan.traits import flat
from kvscope_paper.pass_values import UNITS
from kvscope_paper.published import figures

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def settings() -> list[dict]:
    planned = expand("paper", ["device=modeled"], ROOT / "config").experiments
    return [dict(flat(point.experiment.to_dict())) for point in planned]


def test_every_published_value_has_exactly_one_experiment_in_the_study(settings):
    for point in figures.points():
        results = [setting for setting in settings if point.fits(setting)]
        assert len(results) == 1, (point.table.figure, dict(point.settings), len(results))


def test_further_policies_stand_beside_those_of_the_paper(settings):
    """Each experiment with `adaptive` has the paper's policies beside it, and activation."""

    def rest(one: dict) -> tuple:
        return tuple(sorted((k, str(v)) for k, v in one.items() if not k.startswith("overflow")))

    beside: dict[tuple, set[str]] = defaultdict(set)
    for one in settings:
        pinned = one.get("overflow.host_memory") != "pageable"
        beside[rest(one)] |= {one["overflow.name"]} if pinned else set()
    further = [names for names in beside.values() if "adaptive" in names]
    everything = {"recompute", "swap", "activation", "adaptive"}
    assert len(further) == 18
    # Activations of grouped queries are larger than K and V: one experiment has none.
    assert Counter(map(frozenset, further))[frozenset(everything - {"activation"})] == 1
    assert sum(names == everything for names in further) == 17


def test_every_metric_of_a_published_table_is_one_of_kvscope():
    of_single_passes = {"scheduled_tokens", *UNITS}
    assert {table.metric for table in figures.tables()} <= {*metrics_by_name(), *of_single_passes}


def test_there_are_as_many_values_as_the_figures_show():
    # Bars and points of the paper's plots: 10 lengths of Figure 3a's 7B model in batches that fill
    # 8,192 tokens at most; 2 policies and 6 sizes; 3 policies and 6 block sizes.
    counts = Counter(point.table.figure for point in figures.points())
    assert (counts["3a"], counts["8a"], counts["10a"]) == (119, 18, 12)


def test_values_that_the_papers_figures_do_not_show_are_marked():
    """In 3a other models, in 4a the prompt of 4K, in 4b other workloads, in 11 all but the use."""
    points = [*figures.points()]
    others = [point for point in points if not point.in_paper]
    counts = Counter(point.table.figure for point in others)
    assert counts == {"3a": 64, "4a": 20, "4b": 108, "11a": 4, "11b": 4, "11c": 4}
    assert (len(others), len(points)) == (204, 1075)
    assert {p.settings["model.name"] for p in points if p.in_paper and p.table.figure == "3a"} == {
        figures.USUAL_MODEL
    }


def test_cited_values():
    """The paper's text states these."""
    values = {
        (p.table.figure, p.settings.get("overflow.name"), p.x): p.value for p in figures.points()
    }
    assert values["10b", "recompute", "opt-13b"] == pytest.approx(10.4, abs=0.05)
    assert values["10b", "swap", "opt-13b"] == pytest.approx(7.2, abs=0.1)
    assert values["10b", "recompute", "llama-3.1-8b"] == pytest.approx(0.38, abs=0.01)
