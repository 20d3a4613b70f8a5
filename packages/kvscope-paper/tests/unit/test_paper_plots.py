"""The figures of the paper: all of them, in its order, with the marks of comparison.csv."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from kvscope.plan.grid import expand
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.render import print_figure
from kvscope_paper import page
from kvscope_paper.comparison import Comparison
from kvscope_paper.layouts import layouts
from kvscope_paper.plots import figures
from kvscope_paper.published.figures import points, tables

ROOT = Path(__file__).parents[4]
NO_RUNS = StudyData("paper", "The paper", "", (), ())
OF_THE_PAPER = [
    *("3a", "3b", "3c", "4a", "4b", "4c", "5", "6a", "6b", "7"),
    *("8a", "8b", "9", "10a", "10b", "11a", "11b", "11c"),
]
FACTOR = 1.1
FOUND = [
    Comparison(
        point, "modeled", None, point.value * FACTOR, math.nan, math.nan, point.value * FACTOR, "s"
    )
    for point in points()
]


def rows(drawing: Drawing) -> pd.DataFrame:
    return pd.concat(drawing.views[0].data.values())


def drawn() -> dict[str, Drawing]:
    return {one.layout.figure: one.drawings[0] for one in figures(layouts(), FOUND, NO_RUNS)}


def test_every_figure_of_the_paper_is_laid_out_in_its_order():
    own = [one.figure for one in layouts()]
    assert own[: len(OF_THE_PAPER)] == OF_THE_PAPER
    assert all(name.startswith("abstract") for name in own[len(OF_THE_PAPER) :])
    assert {table.figure for table in tables()} <= {*own}
    also = [one.also for one in layouts() if one.also]
    assert also == [f"poster {number}" for number in (2, 3, 4, 5, 6)]


def test_a_figure_of_runs_shows_experiments_of_the_study():
    """Of each policy one; of Figure 6b the only one."""
    planned = expand("paper", ["device=modeled"], ROOT / "config").experiments
    shown = {
        one.figure: [
            planned_one.experiment.overflow.name
            for planned_one in planned
            if one.runs.fits(planned_one.experiment.to_dict())
        ]
        for one in layouts()
        if one.runs
    }
    of_both = {key: ["recompute", "swap"] for key in ("7", "11a", "11b", "11c", "abstract 4")}
    assert shown == of_both | {"6b": ["recompute"]}


@pytest.mark.parametrize("figure", dict.fromkeys(table.figure for table in tables()))
def test_the_marks_of_a_figure_are_its_published_values_and_ours(figure):
    """Each once: a value that is in no plot, or in two, is noticed."""
    own = [one for one in FOUND if one.point.table.figure == figure]
    marks = rows(drawn()[figure])
    assert sorted(marks["published"]) == sorted(one.point.value for one in own)
    assert marks["ours"].tolist() == pytest.approx((FACTOR * marks["published"]).tolist())


@pytest.mark.parametrize("figure", dict.fromkeys(table.figure for table in tables()))
def test_a_plot_has_one_bar_or_point_at_one_place_in_one_colour(figure):
    for frame in drawn()[figure].views[0].data.values():
        assert not frame.duplicated(["x", "colour"]).any()


@pytest.mark.parametrize("figure", ["3a", "4b", "5", "10a"])
def test_a_figure_is_printed(figure):
    svg = print_figure(drawn()[figure]).svg
    assert len(re.findall("<path", svg)) > len(rows(drawn()[figure]))


def test_the_page_has_each_figure_with_its_files(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "compare", lambda study: FOUND)
    page.write_paper(NO_RUNS, tmp_path)
    html = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    places = [html.index(f'id="{one.slug}"') for one in layouts() if one.plots]
    assert places == sorted(places)
    for one in layouts():
        if one.plots:
            for suffix in ("pdf", "png", "csv"):
                assert (tmp_path / page.FIGURES / f"{one.slug}.{suffix}").stat().st_size
