"""Figures: every one draws marks, and what is drawn is what the tables hold."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.metrics.measure import measures
from kvscope.plan.figures import Axes
from kvscope.report.axes import strategy_key
from kvscope.report.data import FigureRequest
from kvscope.report.figures import (
    kv_timeline,
    of_metrics,
    window_fill,
)
from kvscope.report.figures.figure import is_wide, log_ticks, widen_covered
from kvscope.report.figures.passes import MERGE
from kvscope.report.figures.registry import draw_figure, drawings
from kvscope.report.latencies import latencies_of
from kvscope.report.load import load
from kvscope.report.render import print_figure, specification, svg

from .kv_access_fixture import Served, write_untraced_run
from .marks import draw, marks_of, own_figures, streams
from .report_fixture import Fake, batching_study, overflow_study, write_study

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SERIES = {
    "recompute",
    "swap (pinned, per block)",
    "swap (pinned, coalesced)",
    "swap (pageable, per block)",
    "swap (pageable, coalesced)",
}
OVERHEADS = ("resume_overhead_as_published_s", "resume_overhead_net_s")
OVER_SIZE = Axes(x="cache.block_size", colour="overflow")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_study(results, list(overflow_study()), "overflow")
    write_untraced_run(results, "served", Served(prompts=(16, 90), layers=2, heads=2, repeats=2))
    return write_study(results, list(batching_study()), "batching")


@pytest.fixture(scope="module")
def overflow(results):
    study = load(["overflow"], results)
    return replace(study, figures=(FigureRequest("resume_overhead", (OVER_SIZE,)),))


@pytest.fixture(scope="module")
def batching(results):
    return load(["batching"], results)


@pytest.fixture(scope="module")
def studies(results, overflow, batching):
    served = load([str(results / "experiments" / "served")], results)
    return {"overflow": overflow, "batching": batching, "served": served}


@pytest.fixture(scope="module")
def drawn(studies):
    return {name: drawings(study) for name, study in studies.items()}


def cells(drawing):
    """Title and table of each plot of what is printed."""
    view = drawing.views[0]
    spec = specification(view.chart)
    data = {}
    for cell in spec["concat"]:
        name = re.findall(r"'name': '(cell\d+)'", str(cell))[0]
        title = cell["title"]
        data[" ".join(title["text"]), " ".join(title["subtitle"])] = view.data[name]
    return data


def test_together_the_studies_have_every_figure(drawn):
    # Of calibrated runs, of declared axes, and of several KV groups: test_report_predictions.py,
    # test_report_winners.py, tests/engine/test_kv_groups.py.
    drawn_elsewhere = {"predictions", "winners", "kv_groups"}
    found = {name for found in drawn.values() for name in found}
    assert found & own_figures() == own_figures() - drawn_elsewhere
    assert not set(drawn["overflow"]) & {"strategies", "window_fill"}
    assert not set(drawn["served"]) & {"resume_overhead", "strategies", "swapping"}


@pytest.mark.parametrize("study", ["overflow", "batching", "served"])
def test_every_figure_draws_marks_in_each_of_its_plots(drawn, study):
    for name, drawing in drawn[study].items():
        assert marks_of(svg(drawing)), name
        for view in drawing.views:
            assert all(len(frame) for key, frame in view.data.items() if key != "events"), name


def test_the_same_tables_are_printed_as_the_same_pdf_and_png(drawn):
    one, again = (print_figure(drawn["batching"]["throughput"]) for _ in range(2))
    assert one.pdf.startswith(b"%PDF")
    assert one.png.startswith(b"\x89PNG")
    assert (one.svg, one.png) == (again.svg, again.png)
    assert streams(one.pdf) == streams(again.pdf)


def test_views_that_are_not_printed_are_charts_as_well(drawn):
    for name in ("throughput", "step_timeline"):
        views = drawn["overflow"][name].views
        for chart in {id(view.chart): view.chart for view in views}.values():
            assert vl_convert.vegalite_to_vega(chart)["marks"]


def test_a_study_declares_its_axes_and_the_first_hold_for_the_others(overflow, drawn):
    for name in ("resume_overhead", "throughput"):
        frames = cells(drawn["overflow"][name]).values()
        for frame in frames:
            assert set(frame["x"]) <= {32, 64}
    colours = {
        c for frame in cells(drawn["overflow"]["resume_overhead"]).values() for c in frame["colour"]
    }
    assert colours == SERIES


def test_the_two_measures_and_the_makespan_are_drawn_as_the_tables_have_them(overflow, drawn):
    found = cells(drawn["overflow"]["resume_overhead"])
    by_label = {run.label: run for run in overflow.runs}
    for shown in map(measures().__getitem__, (*OVERHEADS, "makespan_beyond_ample_s")):
        frame = found[f"{shown.heading} (s)", ""]
        for row in frame.itertuples():
            number = by_label[row.experiment].number(shown.name)
            assert (row.value, row.high) == (number.value, number.high)
            assert row.low == (number.low if shown.signed else max(0.0, number.low))
        preempting = [run for run in overflow.runs if of_metrics.preempts(run)]
        known = [r for r in preempting if not math.isnan(r.number(shown.name).value)]
        assert sorted(frame["experiment"]) == sorted(run.label for run in known)


def test_a_plot_of_resume_times_names_the_model_and_the_device(overflow, drawn):
    (run, *_) = overflow.complete
    for title, conditions in cells(drawn["overflow"]["resume_time"]):
        assert title == "Cost of a preemption (ms)"
        assert run.flat["model"] in conditions
        assert run.flat["device"] in conditions


def test_points_of_equal_cost_lie_in_one_another():
    costs = {"a": (5.0, 7.0), "b": (5.1, 9.0), "c": (20.0, 9.0), "d": (5.0, 9.05)}
    points = pd.DataFrame(
        [
            {"colour": name, "tokens": tokens, "cost_ms": cost}
            for name, both in costs.items()
            for tokens, cost in zip((100.0, 200.0), both, strict=True)
        ]
    )
    found = widen_covered(points, "tokens", "cost_ms").set_index(["tokens", "colour"])["size"]
    assert found[100]["a"] > found[100]["b"] > found[100]["d"] == found[100]["c"]
    assert found[200]["b"] > found[200]["c"] > found[200]["d"] == found[200]["a"]
    assert found.is_monotonic_decreasing  # the widest are drawn first


def test_negative_values_apart_are_not_taken_to_cover_one_another():
    points = pd.DataFrame({"colour": ["a", "b", "c"], "x": 1.0, "y": [-2.0, -1.0, -0.99]})
    found = widen_covered(points, "x", "y").set_index("colour")["size"]
    assert found["b"] > found["c"] == found["a"]


def test_a_facet_has_plots_of_its_own_and_picks_what_it_is_told(batching):
    axes = Axes(x="batching", facet="cache.blocks", where={"cache.blocks": 12})
    asked = replace(batching, figures=(FigureRequest("throughput", (axes,)),))
    found = cells(draw("throughput", asked))
    assert {facet for _, facet in found} == {"KV cache 12 blocks"}
    assert all(len(frame) == 4 for frame in found.values())


def test_an_option_is_picked_by_its_name_whatever_its_settings(batching):
    axes = Axes(x="cache.blocks", colour="batching", where={"batching": "chunked"})
    asked = replace(batching, figures=(FigureRequest("throughput", (axes,)),))
    frame = next(iter(cells(draw("throughput", asked)).values()))
    assert set(frame["colour"]) == {"chunked (128 tokens)", "chunked (64 tokens)"}


def test_without_a_declaration_the_first_number_is_x_and_the_policy_the_colour(batching):
    frame = next(iter(cells(draw("throughput", batching)).values()))
    assert set(frame["x"]) == {12, 48}
    assert set(frame["colour"]) == {
        "prefill first", "mixed", "chunked (128 tokens)", "chunked (64 tokens)",
    }  # fmt: skip


@pytest.mark.parametrize("x", ["workload.prompt_tokens", "seed"])
def test_where_experiments_have_no_two_values_of_x_each_has_a_bar(batching, x):
    asked = replace(batching, figures=(FigureRequest("throughput", (Axes(x=x),)),))
    drawing = draw("throughput", asked)
    assert drawing.views[0].choice == ("experiment",)
    frame = next(iter(cells(drawing).values()))
    assert list(frame["experiment"]) == [run.label for run in batching.runs]


def test_points_of_one_colour_at_one_place_are_named_by_their_grids(overflow):
    roomy = {"recompute": "scarce"}
    runs = [
        replace(run, grid="ample" if at % 6 == 5 else "scarce")
        for at, run in enumerate(overflow.runs)  # of a block size the last
    ]
    frame = next(iter(cells(draw("throughput", replace(overflow, runs=tuple(runs)))).values()))
    assert {"recompute", "recompute, ample"} <= set(frame["colour"]) | set(roomy)
    assert not frame.duplicated(["x", "colour"]).any()


def test_a_measure_that_no_experiment_has_is_not_drawn(results, overflow):
    alone = load([str(run.directory) for run in overflow.runs[:5]], results)
    titles = {title for title, _ in cells(draw("resume_overhead", alone))}
    assert titles == {f"{shown.heading} (s)" for shown in map(measures().__getitem__, OVERHEADS)}


def test_what_is_not_valid_is_hollow_and_says_why(overflow, results):
    run = overflow.runs[0]
    metrics = run.metrics.assign(valid=False, reasons="unstable")
    study = replace(overflow, runs=(replace(run, metrics=metrics), *overflow.runs[1:]))
    drawing = draw("throughput", study)
    assert "hollow: not valid" in drawing.remarks
    frame = next(iter(cells(drawing).values()))
    assert list(frame.loc[~frame["valid"], "reasons"]) == ["not valid: unstable"]


def test_strategies_stand_by_policy_with_chunks_in_order(batching, drawn):
    spec = str(specification(drawn["batching"]["strategies"].views[0].chart))
    order = "['prefill first', 'mixed', 'chunked (64 tokens)', 'chunked (128 tokens)']"
    assert order in spec
    assert strategy_key(batching) == "batching"


def test_the_first_passes_are_compared_where_nothing_but_the_strategy_differs(batching):
    groups = window_fill.groups(batching)
    assert {name: len(group) for name, group in groups.items()} == {
        "KV cache 48 blocks": 4,
        "KV cache 12 blocks": 4,
    }
    for strategy, run in groups["KV cache 12 blocks"]:
        steps = tables.read(tables.STEPS, run.directory / "steps.parquet")
        first = steps[(steps["repeat"] == 0) & (steps["step"] < 20)]
        assert window_fill.first_tokens(run) == list(first["scheduled_tokens"]), strategy


def test_the_window_is_the_longest_request_where_a_pass_may_have_more(batching):
    for batched_tokens, window in ((4096, 1024), (512, 512)):
        engine = {"max_num_batched_tokens": batched_tokens, "max_model_len": 1024}
        run = replace(batching.runs[0], settings={"engine": engine})
        assert window_fill.window(run) == window


def test_the_host_pool_and_the_events_are_drawn_over_time(overflow, drawn):
    frame = drawn["overflow"]["kv_timeline"].views[0].data["passes"]
    for run in overflow.runs[:6]:
        own = frame[frame["experiment"] == run.label]
        steps = run.steps(0)
        assert own["blocks"].max() == pytest.approx(
            100 * (steps["kv_blocks_used"] / steps["kv_blocks_total"]).max(), abs=0.01
        )
        assert own["host"].notna().any() == ("swap" in run.label)
        starts = steps.set_index("step")["start_s"]
        events = run.preemptions(0)
        for event, name in kv_timeline.EVENTS.items():
            passes = sorted(set(events.loc[events["event"] == event, "step"]))
            marked = own.loc[own["event"] == name, "start_s"] if "event" in own else []
            assert list(marked) == pytest.approx([starts[step] for step in passes], abs=1e-5)


def test_the_step_timeline_has_every_pass_and_event_of_every_repeat(overflow, drawn):
    views = {view.choice: view for view in drawn["overflow"]["step_timeline"].views}
    for run in overflow.runs:
        for repeat in run.repeats:
            view = views[run.label, str(repeat), "time"]
            steps = run.steps(repeat)
            first = view.data["passes"].drop_duplicates("step")
            assert list(first["step"]) == list(steps["step"])
            assert list(first["kv_blocks_used"]) == list(steps["kv_blocks_used"])
            assert list(first["tokens"]) == list(steps["scheduled_tokens"])
            assert len(view.data["events"]) == len(run.preemptions(repeat)) + steps["stalled"].sum()


@given(st.floats(min_value=1e-6, max_value=1e6), st.floats(min_value=7.5, max_value=1e9))
def test_a_logarithmic_axis_has_a_few_ticks_within_its_ends(low, ratio):
    high = low * ratio
    assert is_wide([low, high])
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)
    assert np.all(np.diff(ticks) > 0)


def test_thinned_columns_are_those_that_timelines_draw():
    assert {"start_s", "prefill_tokens", "kv_blocks_used", "host_blocks_used"} <= set(MERGE)


@pytest.fixture(scope="module")
def many(batching):
    """More experiments than one figure shows: nine times those of the study, by policy a grid."""
    runs = [
        replace(
            run,
            id=f"{run.id}-{seed}",
            grid=run.varied["batching"],
            varied=run.varied | {"seed": seed},
        )
        for seed in range(9)
        for run in batching.runs
    ]
    return batching.part(runs)


def shown(view):
    """The experiments' values that a view has."""
    return sum(len(frame) for name, frame in view.data.items() if name.startswith("cell"))


def test_of_many_experiments_a_view_shows_one_grid_and_together_they_show_all(many):
    drawing = draw("utilization", many)
    whole = draw("utilization", many.part(many.runs[:64]))
    assert "Grid" not in whole.headings
    assert drawing.headings[0] == "Grid"
    grids = list(dict.fromkeys(run.grid for run in many.runs))
    assert list(dict.fromkeys(view.choice[0] for view in drawing.views)) == grids
    assert all(view.remarks == (f"Grid: {view.choice[0]}",) for view in drawing.views)
    size = {grid: sum(run.grid == grid for run in many.runs) for grid in grids}
    first = {view.choice[0]: shown(view) for view in reversed(drawing.views)}
    of_one = shown(whole.views[0]) / 64
    assert first == {grid: of_one * count for grid, count in size.items()}


def test_the_printed_figure_names_its_grid(many):
    assert "Grid: prefill_first" in svg(draw("utilization", many))


def test_axes_that_the_study_declares_hold_for_all_its_grids(many):
    axes = (Axes(x="seed", colour="batching", facet="cache.blocks"),)
    declared = replace(many, figures=(FigureRequest("utilization", axes),))
    drawing = draw("utilization", declared)
    assert "Grid" not in drawing.headings
    assert shown(drawing.views[0]) == shown(drawing.views[1])


def test_plots_along_axes_of_several_grids_name_theirs(many):
    grids = list(dict.fromkeys(run.grid for run in many.runs))
    axes = tuple(Axes(x="seed", colour="batching", where={"grid": grid}) for grid in grids)
    of_all, of_one = (
        draw("utilization", replace(many, figures=(FigureRequest("utilization", asked),)))
        for asked in (axes, axes[:1])
    )
    assert list(dict.fromkeys(subtitle for _, subtitle in cells(of_all))) == grids
    assert {subtitle for _, subtitle in cells(of_one)} == {""}


def test_strategies_are_compared_in_grids_that_have_several(many):
    drawing = draw("strategies", many)
    assert {view.choice[0] for view in drawing.views} == {"chunked"}  # of two sizes of chunks


def test_latencies_that_do_not_differ_are_no_distribution(batching):
    same = [replace(run) for run in batching.runs]
    for run in same:
        requests = run.records.requests
        run.__dict__["latencies"] = latencies_of(
            requests.assign(arrival_s=0.0, first_token_s=1.0, finished_s=1.0)
        )
    alike = replace(batching, runs=tuple(same))
    assert draw_figure(alike, "latency_distributions") is None
    assert draw_figure(alike, "goodput") is None


@pytest.mark.parametrize("stall", [True, False])
def test_a_metric_that_equals_another_everywhere_is_drawn_once(tmp_path, stall):
    """Without a stall, throughput is that without stalls; the note names what is left out."""
    fakes = [Fake({"seed": seed}, stall=stall, speed=seed) for seed in (1, 2)]
    drawing = drawings(load(["stalls"], write_study(tmp_path, fakes, "stalls")))["throughput"]
    assert len(cells(drawing)) == (2 if stall else 1)
    left_out = "Equal to what is drawn: Throughput without stalls."
    assert (left_out in drawing.views[0].note) is not stall
