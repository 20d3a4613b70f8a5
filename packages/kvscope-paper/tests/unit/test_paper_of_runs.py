"""The figures of single experiments: over time, and block by block, beside published series."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_traces import BLOCK_SIZE, PROMPTS, STEPS, Artifact

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.report.data import StudyData
from kvscope.report.load import load
from kvscope.report.render import print_figure
from kvscope_kernels.analyse.access import trace_to_draw
from kvscope_paper.accesses_by_block import accesses_of, draw
from kvscope_paper.layouts import OfRuns
from kvscope_paper.of_runs import OWN, draw_runs
from kvscope_paper.published import cache_use, trace
from kvscope_paper.published.cache_use import GPU, HOST, SPANS, published_use, thin
from kvscope_paper.published.figures import points
from kvscope_paper.published.trace import published_accesses, traced_accesses
from kvscope_paper.unboxkv.trace_json import KernelTraces, read_records
from kvscope_paper.use_over_time import WINDOW_S, draw_use, throughput
from tests.unit.kv_access_fixture import write_traced_run
from tests.unit.report_fixture import Fake, write_study

NO_RUNS = StudyData("paper", "The paper", "", (), ())
SERIES = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 100)), min_size=1, max_size=300)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory) -> StudyData:
    fakes = [
        Fake({"overflow": "recompute"}, "recompute"),
        Fake({"overflow": "swap"}, "swap"),
    ]
    return load(["fake"], write_study(tmp_path_factory.mktemp("results"), fakes))


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> StudyData:
    results = tmp_path_factory.mktemp("results")
    write_traced_run(results, "traced")
    return load([str(results / "experiments" / "traced")], results)


# Columns of a series that are compared


@given(SERIES, st.integers(1, 50))
def test_a_thinned_series_reaches_as_high_and_low_in_each_span(series, spans):
    at_s, values = np.cumsum([step for step, _ in series]), np.array([v for _, v in series])
    kept = thin(at_s, values, spans)
    assert len(kept) <= 2 * spans + 2
    assert (np.diff(kept) > 0).all()
    assert {0, len(at_s) - 1} <= {*kept}
    width = (at_s[-1] - at_s[0]) / spans or 1.0
    of_span = np.minimum(((at_s - at_s[0]) / width).astype(int), spans - 1)
    all_of, own = (
        pd.Series(values[rows]).groupby(of_span[rows]).agg(["min", "max"])
        for rows in (np.arange(len(at_s)), kept)
    )
    assert all_of.equals(own)


def test_nothing_stays_of_no_series():
    assert not len(thin(np.empty(0), np.empty(0)))


def test_the_published_series_end_and_peak_as_the_published_values_say():
    """Two files of the package, made apart."""
    use = published_use()
    assert (use.groupby(["figure", "policy", "memory"]).size() <= 2 * SPANS + 2).all()
    for point in points(("11a", "11b", "11c")):
        own = use[use["figure"] == point.table.figure]
        policy = own[own["policy"] == point.x]
        if point.table.metric == "makespan_s":
            assert policy["at_s"].max() == pytest.approx(point.value, abs=0.05)
        if point.table.metric == "host_block_utilization_peak":
            peak = policy.loc[policy["memory"] == HOST, "percent"].max()
            assert peak / 100 == pytest.approx(point.value)


def test_the_file_is_made_of_the_artifact_s_series(tmp_path):
    rows = range(1, 5)
    for beginning, host in (("recmp", 0.0), ("swap", 5.0)):
        steps = "step_id,dur(ms),running_reqs,resumed_reqs\n"
        stats = ",".join(f'"{name}"' for name in cache_use_columns()) + "\n0,0,0,0,0,0,0\n"
        steps += "".join(f"{n},9,1,0\n" for n in rows)
        stats += "".join(f"{10 * n},100,1,0,0,{20 * n},{host}\n" for n in rows)
        (tmp_path / f"{beginning}_step_x.csv").write_text(steps)
        (tmp_path / f"{beginning}_x.csv").write_text(stats)
    cache_use.write([f"11a={tmp_path}"], tmp_path / "out.csv")
    result = pd.read_csv(tmp_path / "out.csv").groupby(["figure", "policy", "memory"])
    assert result["percent"].max().to_dict() == {
        ("11a", "recompute", GPU): 80.0,
        ("11a", "swap", GPU): 80.0,
        ("11a", "swap", HOST): 5.0,
    }
    with pytest.raises(BadInput):
        cache_use.write([f"11a={tmp_path / 'nothing'}"], tmp_path / "out.csv")


def cache_use_columns() -> list[str]:
    return [
        *("Time elapsed (ms)", "Avg throughput (tokens/s)", "Running (reqs)", "Swapped (reqs)"),
        *("Pending (reqs)", "GPU KV cache usage (%)", "CPU KV cache usage (%)"),
    ]


# Over time


def test_a_plot_for_each_policy_and_memory_that_is_used(overflowing):
    drawing = draw_use(overflowing, "11a")
    assert drawing
    frames = [*drawing.views[0].data.values()]
    assert len(frames) == 3
    for frame in frames:
        published, ours = sorted(set(frame["source"]), reverse=True)
        assert published == "published"
        assert ours.startswith("ours, ")
    assert "<path" in print_figure(drawing).svg


def test_ours_is_the_use_after_each_pass(overflowing):
    recompute = next(r for r in overflowing.runs if r.settings["overflow"]["name"] == "recompute")
    drawing = draw_use(replace(overflowing, runs=(recompute,)), "none")
    assert drawing
    frame = drawing.views[0].data["strip0"]
    steps = recompute.steps(recompute.repeats[0])
    percent = 100 * steps["kv_blocks_used"] / steps["kv_blocks_total"]
    assert frame["value"].max() == pytest.approx(percent.max(), abs=0.01)
    end_s = (steps["start_s"] + steps["duration_s"]).iloc[-1]
    assert frame["at_s"].iloc[-1] == pytest.approx(end_s, abs=0.01)


def test_the_windows_of_a_throughput_hold_all_tokens(overflowing):
    for run in overflowing.runs:
        steps = run.steps(run.repeats[0])
        slow = steps.assign(start_s=40 * steps["start_s"], duration_s=40 * steps["duration_s"])
        for passes in (steps, slow):
            begins_s, rates = throughput(passes)
            assert begins_s[0] == 0  # drawn over its own window, not over the next
            assert WINDOW_S * rates.sum() == pytest.approx(passes["scheduled_tokens"].sum())
            assert (rates >= 0).all()


def test_without_passes_there_is_no_figure(overflowing):
    for name, draw_own in OWN.items():
        assert draw_own(NO_RUNS, "11a") is None, name
    fitting = OfRuns(figure="use", published="11a", where={"overflow.name": "activation"})
    assert draw_runs(fitting, overflowing) is None


# Block by block


def test_traced_accesses_are_those_of_the_requests_blocks(tmp_path):
    artifact = Artifact(PROMPTS).serve()
    result = traced_accesses(KernelTraces.of(*read_records(artifact.files(tmp_path))))
    assert result["pass"].max() == STEPS
    for kind, first in (("k_write", 1), ("v_write", 1), ("k_read", 2), ("v_read", 2)):
        own = result[result["kind"] == kind]
        assert own["pass"].min() == first
        for request, (prompt, table) in enumerate(
            zip(PROMPTS, artifact.tables, strict=True), start=1
        ):
            blocks = own.loc[(own["pass"] == first) & (own["request"] == request), "block"]
            tokens = prompt + first - 1
            assert set(blocks) == set(table[: -(-tokens // BLOCK_SIZE)])
    assert (result["duration"] >= 0).all()


def test_the_published_trace_reads_as_many_blocks_as_the_published_values_say():
    """Two files of the package, made apart."""
    result = published_accesses()
    reads = result[result["kind"] == "k_read"].groupby("pass").size()
    values = {p.x + 1: p.value for p in points(("6b",))}
    assert reads.to_dict() == {number: values[number] for number in reads.index}
    written = result[(result["kind"] == "k_write") & (result["pass"] == 1)]
    assert written.groupby("request").size().tolist() == [-(-n // 16) for n in (16, 343, 16, 893)]


def test_the_file_of_a_trace_is_made_of_the_artifact_s(tmp_path):
    files = Artifact(PROMPTS).serve().files(tmp_path)
    trace.write(files, tmp_path / "out.csv")
    made = traced_accesses(KernelTraces.of(*read_records(files)))
    assert pd.read_csv(tmp_path / "out.csv").equals(made)


@pytest.mark.parametrize("what", ["writes", "reads"])
def test_each_block_of_a_pass_is_a_bar_from_its_first_access_to_its_last(traced, what):
    (run,) = traced.runs
    trace = trace_to_draw(run)
    assert trace
    events = tables.read(tables.KV_EVENTS, trace.path)
    events = events[(events["repeat"] == 0) & (events["layer"] == events["layer"].min())]
    events = events[events["kv_head"].isna() | (events["kv_head"] == events["kv_head"].min())]
    drawn = accesses_of(trace.of_repeat(0))
    for place, step in enumerate(sorted(events["step"].unique())[:5], start=1):
        own = events[(events["step"] == step) & events["request_id"].notna()]
        blocks = own.groupby(["kind", "request_id", "block"])
        bars = drawn[drawn["pass"] == place]
        assert len(bars) == blocks.ngroups
        assert bars["start"].min() == 0
        took = (blocks["end_ns"].max() - blocks["start_ns"].min()) / 1e3
        assert bars["duration"].sum() == pytest.approx(took.sum())
    drawing = draw(what, traced, "")
    assert drawing
    assert len(drawing.views[0].data) == 2 * 5
    assert "<path" in print_figure(drawing).svg


def test_without_a_trace_the_published_one_stands_alone(overflowing):
    drawing = draw("reads", overflowing, "")
    assert drawing
    assert len(drawing.views[0].data) == 5
    assert sum(len(frame) for frame in drawing.views[0].data.values())
