"""The figures of the paper: all of them, in its order, with the marks of comparison.csv."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope.plan.grid import expand
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.render import print_figure
from kvscope_paper.comparison import Comparison
from kvscope_paper.layouts import layouts
from kvscope_paper.plots import NOT_IN_PAPER, figures
from kvscope_paper.published.figures import points, tables
from kvscope_paper.series_look import Look

ROOT = Path(__file__).parents[4]
NO_RUNS = StudyData("paper", "The paper", "", (), ())
OF_THE_PAPER = [
    *("3a", "3b", "3c", "4a", "4b", "4c", "5", "6a", "6b", "7"),
    *("8a", "8b", "9", "10a", "10b", "11a", "11b", "11c"),
]
WIDEST = {False: 3.7 * 96, True: 7.4 * 96}  # pixels: one column of a paper, or two
FACTOR = 1.1
FOUND = [
    Comparison(
        point, "modeled", None, point.value * FACTOR, math.nan, math.nan, point.value * FACTOR, "s"
    )
    for point in points()
]


def plots(figure: str) -> list[pd.DataFrame]:
    """The values of each axis of a figure's plots."""
    return [frame for drawing in drawn()[figure] for frame in drawing.views[0].data.values()]


@cache
def drawn() -> dict[str, tuple[Drawing, ...]]:
    return {figure.layout.figure: figure.drawings for figure in figures(layouts(), FOUND, NO_RUNS)}


def charts(drawing: Drawing) -> list[dict[str, Any]]:
    return drawing.views[0].chart["concat"]


def axes(spec: Any) -> Iterator[dict[str, Any]]:
    """The encodings of a chart that have an axis."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            if key in ("x", "y") and isinstance(value, dict) and value.get("field"):
                yield value
            yield from axes(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from axes(value)


def test_every_figure_of_the_paper_is_laid_out_in_its_order():
    own = [layout.figure for layout in layouts()]
    assert own[: len(OF_THE_PAPER)] == OF_THE_PAPER
    assert all(name.startswith("abstract") for name in own[len(OF_THE_PAPER) :])
    assert {table.figure for table in tables()} <= {*own}
    also = [layout.also for layout in layouts() if layout.also]
    assert also == [f"poster {number}" for number in (2, 3, 4, 5, 6)]


def test_a_figure_of_runs_shows_experiments_of_the_study():
    """It shows one experiment for each policy, and for Figure 6b the only one."""
    planned = expand("paper", ["device=modeled"], ROOT / "config").experiments
    shown = {
        layout.figure: [
            planned_one.experiment.overflow.name
            for planned_one in planned
            if layout.runs.fits(planned_one.experiment.to_dict())
        ]
        for layout in layouts()
        if layout.runs
    }
    of_both = {key: ["recompute", "swap"] for key in ("7", "11a", "11b", "11c", "abstract 4")}
    assert shown == of_both | {"6a": ["recompute"], "6b": ["recompute"]}


@pytest.mark.parametrize("figure", dict.fromkeys(table.figure for table in tables()))
def test_the_marks_of_a_figure_are_its_published_values_and_ours(figure):
    """Each once: a value that is in no plot, or in two, is noticed."""
    own = [comparison for comparison in FOUND if comparison.point.table.figure == figure]
    marks = pd.concat(plots(figure))
    assert sorted(marks["published"]) == sorted(comparison.point.value for comparison in own)
    assert marks["ours"].tolist() == pytest.approx((FACTOR * marks["published"]).tolist())


@pytest.mark.parametrize("figure", dict.fromkeys(table.figure for table in tables()))
def test_a_plot_has_one_bar_or_point_at_one_place_in_one_colour(figure):
    for frame in plots(figure):
        assert not frame.duplicated(["x", "colour"]).any()


@pytest.mark.parametrize("figure", ["3a", "4b", "5", "10a"])
def test_a_figure_is_printed(figure):
    drawing = drawn()[figure][0]
    svg = print_figure(drawing).svg
    assert len(re.findall("<path", svg)) > sum(map(len, drawing.views[0].data.values()))
    width = re.search(r'width="([0-9.]+)"', svg)
    assert width
    assert float(width[1]) < WIDEST[len(charts(drawing)) > 1]


@pytest.mark.parametrize("figure", dict.fromkeys(table.figure for table in tables()))
def test_every_axis_has_a_title(figure):
    """A PDF of its own says what its axes show."""
    for drawing in drawn()[figure]:
        assert all(axis["title"] for axis in axes(drawing.views[0].chart))


@pytest.mark.parametrize("figure", ["3a", "4a", "4b"])
def test_what_the_paper_s_figure_does_not_show_has_a_drawing_of_its_own(figure):
    own = [comparison.point for comparison in FOUND if comparison.point.table.figure == figure]
    for drawing, in_paper in zip(drawn()[figure], (True, False), strict=True):
        shown = pd.concat(drawing.views[0].data.values())["published"]
        assert sorted(shown) == sorted(p.value for p in own if p.in_paper == in_paper)
        assert (NOT_IN_PAPER in " ".join(drawing.remarks)) == (not in_paper)


def test_a_series_has_one_colour_in_all_figures():
    """This holds in every figure that has the series' group."""
    seen: dict[str, set[str]] = {}
    for drawings in drawn().values():
        for drawing in drawings:
            for scale in scales_of(drawing.views[0].chart):
                for name, hue in zip(scale["domain"], scale.get("range", []), strict=False):
                    if name in ("recompute", "swap", "swap, pinned", "mixed", "OPT-13B"):
                        seen.setdefault(name.split(",")[0], set()).add(hue)
    assert len(seen) == 4
    assert all(len(hues) == 1 for hues in seen.values())


def scales_of(spec: Any) -> Iterator[dict[str, Any]]:
    """The scales of colours in a chart."""
    if isinstance(spec, dict):
        result = spec.get("color")
        if isinstance(result, dict) and result.get("scale"):
            yield result["scale"]
        for value in spec.values():
            yield from scales_of(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from scales_of(value)


def test_figures_are_named_as_in_the_paper():
    tokens = plots("3b")[1]  # as published, of the first two requests of each order
    assert dict(tokens[tokens["x"] == 2][["colour", "published"]].to_numpy()) == {
        "wl-1": 359,
        "wl-2": 34,
    }
    assert plots("6a")[0]["x"].tolist() == ["1", "2", "3", "4", "5"]
    assert charts(drawn()["3a"][0])[0]["title"]["text"] == ["Yarn-Llama-2-7B"]
    lengths = [" ".join(chart["title"]["text"])[:2] for chart in charts(drawn()["9"][0])]
    assert lengths == ["1K", "2K", "4K", "8K", "va", "va"]


def test_the_tokens_of_a_pass_stand_beside_their_share_of_the_window():
    left, right = charts(drawn()["5"][0])[0]["layer"]
    assert left["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 4096]
    assert right["encoding"]["y"]["scale"]["domain"] == [0, 100]
    assert right["encoding"]["y"]["axis"]["orient"] == "right"


def test_bars_of_different_series_are_apart_in_grey():
    """Printed, with the opacities that the chart asks for."""
    look = Look(["recompute", "swap, pinned", "swap, pageable"], [], 336)
    svg = print_figure(drawn()["8a"][0]).svg
    printed = {float(found) for found in re.findall(r'<path[^>]* opacity="([0-9.]+)"', svg)}
    assert {shade for shade in look.shade["opacity"]["scale"]["range"] if shade < 1} <= printed


def test_a_published_bar_is_drawn_once_beside_two_devices():
    own = [comparison for comparison in FOUND if comparison.point.table.figure == "10a"]
    beside = [replace(comparison, device="cuda") for comparison in own]
    (figure,) = figures(
        [layout for layout in layouts() if layout.figure == "10a"], own + beside, NO_RUNS
    )
    (frame,) = figure.drawings[0].views[0].data.values()
    assert len(frame) == 2 * len(own)
    assert sorted(frame.loc[frame["first"], "published"]) == sorted(o.point.value for o in own)
    assert "<path" in print_figure(figure.drawings[0]).svg


@pytest.mark.thorough
def test_a_figure_shows_what_there_is():
    """Only the first value of each figure is given, and none on the right axis."""
    first = {comparison.point.table.figure: comparison for comparison in reversed(FOUND)}
    drawn_of_first = [*figures(layouts(), [*first.values()], NO_RUNS)]
    assert [drawn.layout.figure for drawn in drawn_of_first] == [
        layout.figure for layout in layouts() if layout.figure in first
    ]
    for figure in drawn_of_first:
        assert "<path" in print_figure(figure.drawings[0]).svg
