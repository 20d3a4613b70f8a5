"""Figures and charts of policies: what is drawn is what the tables hold."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kvscope import tables
from kvscope.report import style
from kvscope.report.arrangements import arrangements, leading
from kvscope.report.figures import kv_timeline, resume_overhead, strategies, window_fill
from kvscope.report.figures.registry import figures_of
from kvscope.report.load import load
from kvscope.report.words import BEYOND_AMPLE, OVERHEAD_NET, OVERHEAD_PAPER

from .report_fixture import batching_study, overflow_study, write_study

SERIES = (
    "recompute",
    "swap (pinned, per block)",
    "swap (pinned, coalesced)",
    "swap (pageable, per block)",
    "swap (pageable, coalesced)",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_study(results, list(overflow_study((8, 16, 64))), "overflow")
    return write_study(results, list(batching_study()), "batching")


@pytest.fixture(scope="module")
def overflow(results):
    return load(["overflow"], results)


@pytest.fixture(scope="module")
def batching(results):
    return load(["batching"], results)


def drawn(figure, study):
    with style.style():
        return figure.draw(study)


def test_all_policies_of_the_fixture_are_valid(overflow, batching):
    assert all(run.valid for study in (overflow, batching) for run in study.runs)


def test_a_study_has_the_figures_that_it_has_something_for(overflow, batching):
    names = [{figure.name for figure in figures_of(study)} for study in (overflow, batching)]
    assert names[0] >= {"resume_overhead", "swapping", "kv_timeline"}
    assert not names[0] & {"strategies", "window_fill"}
    assert names[1] >= {"strategies", "window_fill"}


def test_overhead_stands_over_block_size_with_a_line_a_policy(overflow):
    (found,) = leading(arrangements(overflow, resume_overhead.preempting))
    assert found.ticks == ("8", "16", "64")
    assert found.positions == pytest.approx((0, 2 / 3, 2))  # log₂, 1 apart on average
    assert tuple(series.name for series in found.series) == SERIES
    assert found.fixed == "KV cache 768 tokens"


def test_the_two_measures_and_the_makespan_are_drawn_as_the_tables_have_them(overflow):
    axes = drawn(resume_overhead.FIGURE, overflow).axes
    (found,) = leading(arrangements(overflow, resume_overhead.preempting))
    for cell, shown in zip(axes, (OVERHEAD_PAPER, OVERHEAD_NET, BEYOND_AMPLE), strict=True):
        assert cell.get_title("left") == shown.heading
        assert cell.get_ylabel() == "s"
        for container, series in zip(cell.containers, found.series, strict=True):
            heights = [overflow.runs[n].number(shown.metric).value for _, n in series.points]
            line, _, (arms,) = container
            assert list(line.get_ydata()) == pytest.approx(heights)
            numbers = [overflow.runs[n].number(shown.metric) for _, n in series.points]
            ends = [segment[:, 1] for segment in arms.get_segments()]
            assert np.array(ends) == pytest.approx(np.array([(x.low, x.high) for x in numbers]))
    assert axes[0].get_ylim() == axes[1].get_ylim()


def test_a_measure_that_no_experiment_has_is_not_drawn(results, overflow):
    alone = load([str(run.directory) for run in overflow.runs[:5]], results)
    assert all(math.isnan(run.number(BEYOND_AMPLE.metric).value) for run in alone.runs)
    titles = [cell.get_title("left") for cell in drawn(resume_overhead.FIGURE, alone).axes]
    assert titles == [OVERHEAD_PAPER.heading, OVERHEAD_NET.heading]


def test_strategies_stand_over_the_policy_with_chunks_in_order(batching):
    axes = drawn(strategies.FIGURE, batching).axes
    ticks = [label.get_text() for label in axes[0].get_yticklabels()]
    assert ticks == ["prefill first", "mixed", "chunked (64 tokens)", "chunked (128 tokens)"]
    assert [cell.get_title("left") for cell in axes if cell.get_visible()] == [
        "Throughput",
        "Prefill throughput",
        "Decode throughput",
        "Throughput of mixed passes",
        "Forward passes",
    ]


def test_the_first_passes_are_compared_where_nothing_but_the_strategy_differs(batching):
    assert [(group.name, len(group.strategies)) for group in window_fill.groups(batching)] == [
        ("KV cache 128 blocks", 4),
        ("KV cache 32 blocks", 4),
    ]


def test_the_first_passes_have_the_tokens_of_the_table_and_their_share_of_the_window(batching):
    lines = window_fill.chart(batching)["data"]
    group = window_fill.groups(batching)[0]
    assert group.window == 512  # max_num_batched_tokens; the longest request has 1024
    for line, (strategy, run) in zip(lines, group.strategies, strict=False):
        steps = tables.read(tables.STEPS, run.directory / "steps.parquet")
        first = steps[(steps["repeat"] == 0) & (steps["step"] < 20)]
        assert line["name"] == f"{strategy}, KV cache 128 blocks"
        assert line["y"] == list(first["scheduled_tokens"])
        assert line["customdata"][0] == f"{100 * line['y'][0] / 512:.1f} % of 512"


def test_the_window_is_the_longest_request_where_a_pass_may_have_more(batching):
    engine = {"max_num_batched_tokens": 4096, "max_model_len": 1024}
    assert window_fill.window(replace(batching.runs[0], settings={"engine": engine})) == 1024


def test_the_host_pool_and_the_events_are_drawn_over_time(overflow):
    data = kv_timeline.chart(overflow)["data"]
    for run in overflow.runs[:6]:
        own = [trace for trace in data if trace["legendgroup"] == run.id]
        lines = [trace for trace in own if trace["mode"] == "lines"]
        steps = run.steps(0)
        assert len(lines) == (2 if "swap" in run.label else 1)
        if len(lines) == 2:
            share = 100 * steps["host_blocks_used"] / steps["host_blocks_total"]
            assert max(lines[1]["y"]) == pytest.approx(share.max(), abs=1e-3)
        starts = steps.set_index("step")["start_s"]
        events = run.preemptions(0)
        for marks, event in zip(own[len(lines) :], ("preempt", "resume"), strict=True):
            passes = sorted(set(events.loc[events["event"] == event, "step"]))
            expected = [starts[step] for step in passes]
            assert marks["x"] == pytest.approx(expected, abs=1e-6)


def test_nothing_is_marked_over_time_where_nothing_is_preempted(results, overflow):
    (cell,) = drawn(kv_timeline.FIGURE, load([str(overflow.runs[5].directory)], results)).axes
    labels = cell.get_legend_handles_labels()[1]
    assert labels == ["blocks in use", "tokens held"]
