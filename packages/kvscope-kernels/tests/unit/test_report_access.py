"""Figures, page and Perfetto trace of KV events show the contents of the tables."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from kvscope import tables
from kvscope.collect.timeline.intervals import write_timeline
from kvscope.collect.timeline.perfetto import write_perfetto
from kvscope.report.circumstances import circumstances
from kvscope.report.figures.registry import draw_figure
from kvscope.report.findings import findings
from kvscope.report.load import load
from kvscope.report.render import specification
from kvscope.tables.results import Run
from kvscope_kernels.analyse.access import trace_to_draw
from kvscope_kernels.analyse.events import read_events, traced_parts
from kvscope_kernels.collect.access_slices import FirstAccesses, read_accesses
from kvscope_kernels.figures import access_gaps, access_pattern, kv_accesses
from kvscope_kernels.figures.accesses import stack_of
from kvscope_kernels.figures.kv_accesses import passes_and_layers
from tests.unit.kv_access_fixture import Served, write_traced_run
from tests.unit.marks import draw
from tests.unit.report_fixture import Fake, write_study
from tests.unit.test_collect_perfetto import packets_of, slices_of, tracks_of

OF_EVENTS = ("access_pattern", "access_gaps", "access_metrics", "kv_accesses")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_traced_run(results, "traced")
    write_traced_run(results, "sampled", Served(head_stride=4, step_stride=2))
    return results


@pytest.fixture(scope="module")
def study(results):
    return load([str(results / "experiments" / name) for name in ("traced", "sampled")], results)


@pytest.fixture(scope="module")
def run(study):
    return study.runs[0]


@pytest.fixture(scope="module")
def path(run):
    trace = trace_to_draw(run)
    assert trace
    return trace.path


@pytest.fixture(scope="module")
def events(results):
    frame = tables.read(tables.KV_EVENTS, results / "tables" / "traced" / "kv_events.parquet")
    return frame[frame["repeat"] == 0]


def test_only_a_study_with_events_has_the_figures(study, tmp_path):
    assert all(draw_figure(study, name) for name in OF_EVENTS)
    untraced = load(["fake"], write_study(tmp_path, [Fake({"cache.blocks": 64})]))
    assert not any(draw_figure(untraced, name) for name in OF_EVENTS)


def test_every_access_of_the_first_passes_is_drawn_from_its_start_to_its_end(study, run, events):
    drawing = draw("access_pattern", replace(study, runs=(run,)))
    frames = list(drawing.views[0].data.values())
    rows = [(layer, write) for layer in (0, 3) for write in (True, False)]
    assert len(frames) == 4 * 5
    for number, frame in enumerate(frames):
        (layer, write), step = rows[number // 5], number % 5
        own = events[(events["layer"] == layer) & (events["step"] == step)]
        own = own[own["kind"].str.endswith("write") == write]
        every = max(1, -(-len(own) // access_pattern.MOST_EVENTS))
        assert len(frame) == -(-len(own) // every)
        starts = (own["start_ns"] - own["start_ns"].min()) / 1e3
        assert set(frame["start"]) <= set(starts.round(3))
        assert set(frame["ns"]) <= set(own["end_ns"] - own["start_ns"])
        assert set(frame["kind"]) <= ({2, 3} if write else {0, 1})
    assert any("accesses are drawn as one" in remark for remark in drawing.remarks)


def test_blocks_of_different_requests_never_stand_at_the_same_height(path, events):
    stack = stack_of(read_events(path, 0))
    blocks = {name: int(count) for name, count in zip(stack.names, stack.blocks, strict=True)}
    assert [blocks[name] for name in ("0", "1", "2", "3")] == [2, 22, 2, 57]
    ends = [(stack.first[n], stack.first[n] + stack.blocks[n]) for n in stack.order]
    for (_, end), (after, _) in pairwise(ends):
        assert end < after
    assert list(stack.labels().values())[-1] == "request 3: 57 blocks"


def test_idle_times_are_drawn_as_they_are_distributed(study, run, events):
    block = ["layer", "request_id", "block"]
    spans = events.groupby([*block, "step"])[["start_ns", "end_ns"]].agg(
        {"start_ns": "min", "end_ns": "max"}
    )
    idle = (spans["start_ns"] - spans.groupby(block)["end_ns"].shift()).dropna() / 1e6
    data = draw("access_gaps", study).views[0].data
    line = data["cell0"]  # the sampled run does not tell
    assert set(line["line"]) == {run.label}
    assert line["x"].iloc[-1] == pytest.approx(idle.max(), abs=1e-6)
    for x, y in list(zip(line["x"], line["y"], strict=True))[1::50]:
        assert y <= 100 * (idle <= x + 1e-6).mean() + 1e-3
        assert y >= 100 * (idle < x - 1e-6).mean() - 1e-3
    everything = 82 * 4 + 3  # all other blocks of all layers, and new blocks
    assert data["cell1"]["x"].iloc[-1] == everything


def test_the_time_to_copy_a_block_back_is_that_of_the_swaps(tmp_path):
    fake = Fake({"cache.blocks": 24}, "swap", stall=False)
    (run,) = load(["fake"], write_study(tmp_path, [fake])).runs
    back = run.transfers(0)[lambda rows: rows["direction"] == "in"]
    expected = 1e3 * back["copy_s"].sum() / back["blocks"].sum()
    assert access_gaps.swap_in_ms(run) == pytest.approx(expected)
    assert expected > 0


def test_metrics_of_accesses_are_drawn_where_they_are_known(study):
    view = draw("access_metrics", study).views[0]
    titles = [" ".join(cell["title"]["text"]) for cell in specification(view.chart)["concat"]]
    count = dict(zip(titles, map(len, view.data.values()), strict=True))
    assert count["Reads at a time (reads)"] == 1
    assert count["Tokens read per token held (ratio)"] == 2


def test_the_findings_say_how_many_events_were_recorded(study, run):
    tracing = run.record.tracing.model_copy(update={"events": 1200, "dropped_events": 3})
    counted = replace(run, record=run.record.model_copy(update={"tracing": tracing}))
    assert findings(replace(study, runs=(counted,))).checks[-1] == (
        "1,200 accesses to the KV cache recorded, 3 dropped (1 traced experiment)."
    )


def test_it_is_told_what_was_traced(study):
    told = {c.name: [text for text, _ in c.values] for c in circumstances(study)}
    assert told["KV events"] == ["full", "sampled, 1 of 2 forward passes, 1 of 4 KV heads"]


def test_the_page_has_every_event_of_the_passes_it_shows(study, run, events):
    drawing = draw("kv_accesses", replace(study, runs=(run,)))
    shown = {view.choice[1:3]: view.data["accesses"] for view in drawing.views}
    assert shown
    for (layer, words), frame in shown.items():
        step = int(words.split()[0])
        own = events[(events["step"] == step) & (events["layer"] == int(layer))]
        own = own.sort_values("start_ns", kind="stable").head(kv_accesses.MOST_EVENTS)
        columns = ["block", "block_position", "offset_tokens", "tokens", "worker"]
        drawn = Counter(
            frame[["block", "position", "offset", "tokens", "worker"]].itertuples(
                index=False, name=None
            )
        )
        assert drawn == Counter(own[columns].itertuples(index=False, name=None))
        assert sorted(frame["ns"]) == sorted(own["end_ns"] - own["start_ns"])


def test_passes_are_kept_whole_as_long_as_they_fit(path):
    parts = traced_parts(path, 0)
    everything = int(parts["events"].sum())
    assert passes_and_layers(parts, everything) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    assert passes_and_layers(parts, everything - 1) == ([0, 1, 2, 3, 4], [0, 3])
    assert passes_and_layers(parts, 1000) == ([0], [0])


def test_experiments_share_the_room_of_a_page(study):
    views = draw("kv_accesses", study).views
    tables_of = {id(frame): len(frame) for view in views for frame in view.data.values()}
    assert sum(tables_of.values()) <= kv_accesses.MOST_EVENTS_A_PAGE
    assert {view.choice[0] for view in views} == {run.label for run in study.runs}


def test_the_perfetto_trace_has_each_access_within_its_stretch(results, events, tmp_path):
    directory = results / "experiments" / "traced"
    run = Run(directory)
    write_timeline(run, tmp_path, None)
    found = read_accesses(results / "tables" / "traced" / "kv_events.parquet", len(events))
    assert (found.shown, found.passes) == (5, 15)
    assert "first 5 of 15 forward passes" in str(found.warning)
    path = tmp_path / "t"
    write_perfetto(tmp_path / "timeline.parquet", run, path, found)
    packets = packets_of(path)
    tracks = tracks_of(packets)
    by_name = {track.name: track for track in tracks.values()}
    group = by_name["KV accesses (first 5 of 15 passes)"]
    assert group.parent_uuid == by_name["forward passes"].uuid
    drawn = {tracks[uuid].name: slices for uuid, slices in slices_of(packets).items()}
    for worker in (0, 1):
        assert by_name[f"worker {worker}"].parent_uuid == group.uuid
        own = events[events["worker"] == worker]
        expected = zip(
            "block " + own["block_position"].astype(str) + " (" + own["block"].astype(str) + ")",
            own["start_ns"],
            own["end_ns"],
            strict=True,
        )
        blocks = [s for s in drawn[f"worker {worker}"] if s[0].startswith("block")]
        assert sorted(blocks) == sorted(expected)
        stretches = [s for s in drawn[f"worker {worker}"] if not s[0].startswith("block")]
        assert sum(end - start for _, start, end in stretches) >= sum(e - s for _, s, e in blocks)
        assert ("layer 0: K read, request 3, head 2" in {name for name, *_ in stretches}) or worker


def test_a_trace_of_all_passes_warns_of_nothing(results):
    path = results / "tables" / "sampled" / "kv_events.parquet"
    found = read_accesses(path)
    assert (found.warning, found.title) == (None, "KV accesses")
    none = FirstAccesses(found.events.slice(0, 0), 0, 0)
    assert list(none.slices()) == []
