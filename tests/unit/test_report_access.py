"""Figures, page and Perfetto trace of KV events: what is shown is what the tables hold."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from kvscope import tables
from kvscope.analyse.events import traced_parts
from kvscope.collect.timeline.access_slices import Accesses, read_accesses
from kvscope.collect.timeline.intervals import write_timeline
from kvscope.collect.timeline.perfetto import write_perfetto
from kvscope.events import KINDS
from kvscope.report import style
from kvscope.report.access import MOST_EVENTS_A_PAGE, accesses, of_run, within
from kvscope.report.circumstances import circumstances
from kvscope.report.figures import access_gaps, access_metrics, access_pattern
from kvscope.report.figures.registry import figures_of
from kvscope.report.findings import findings
from kvscope.report.load import load
from kvscope.report.study import report
from kvscope.results import Run

from .kv_access_fixture import Served, write_traced_run
from .report_fixture import Fake, write_study
from .test_collect_perfetto import packets_of, slices_of, tracks_of
from .test_report_page import Elements

FIGURES = {"access_pattern", "access_gaps", "access_metrics"}


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
def events(results):
    frame = tables.read(tables.KV_EVENTS, results / "tables" / "traced" / "kv_events.parquet")
    return frame[frame["repeat"] == 0]


def drawn(figure, study):
    with style.style():
        return figure.draw(study)


def test_only_a_study_with_events_has_the_figures(study, tmp_path):
    assert {figure.name for figure in figures_of(study)} >= FIGURES
    untraced = load(["fake"], write_study(tmp_path, [Fake({"cache.blocks": 64})]))
    assert not {figure.name for figure in figures_of(untraced)} & FIGURES


def test_every_access_of_the_first_passes_is_a_line_from_its_start_to_its_end(study, run, events):
    alone = replace(study, runs=(run,))
    cells = [cell for cell in drawn(access_pattern.FIGURE, alone).axes if cell.collections]
    rows = [(layer, write) for layer in (0, 3) for write in (True, False)]
    origin = events["start_ns"].min()
    for number, cell in enumerate(cells):
        (layer, write), step = rows[number // 5], number % 5
        own = events[(events["layer"] == layer) & (events["step"] == step)]
        own = own[own["kind"].str.endswith("write") == write]
        (lines,) = (c for c in cell.collections if isinstance(c, LineCollection))
        ends = np.array(lines.get_segments())
        start, end = ((own[name] - origin) / 1e6 for name in ("start_ns", "end_ns"))
        seen = np.maximum(end, start + access_pattern.NARROWEST * (end.max() - start.min()))
        assert sorted(ends[:, 0, 0]) == pytest.approx(sorted(start))
        assert sorted(ends[:, 1, 0]) == pytest.approx(sorted(seen))
    assert len(cells) == 4 * 5


def test_blocks_of_different_requests_never_stand_at_the_same_height(run):
    stack = access_pattern.pattern(run, 2).stack
    blocks = {
        name: (first, count)
        for name, first, count in zip(stack.names, stack.first, stack.blocks, strict=True)
    }
    assert [int(blocks[name][1]) for name in ("0", "1", "2", "3")] == [2, 22, 2, 57]
    ordered = [blocks[name] for name in ("0", "1", "2", "3")]
    for (first, count), (after, _) in pairwise(ordered):
        assert first + count < after


def test_a_pattern_of_too_many_accesses_is_a_sample_and_says_so(study, run, monkeypatch):
    monkeypatch.setattr(access_pattern, "MOST_EVENTS", 500)
    figure = drawn(access_pattern.FIGURE, replace(study, runs=(run,)))
    assert figure.get_suptitle() == "up to 17 events are drawn as one"  # 8,064 reads in one axes
    for cell in figure.axes:
        for lines in cell.collections:
            assert len(lines.get_segments()) <= 500


def test_idle_times_are_drawn_as_they_are_distributed(study, run, events):
    block = ["layer", "request_id", "block"]
    spans = events.groupby([*block, "step"])[["start_ns", "end_ns"]].agg(
        {"start_ns": "min", "end_ns": "max"}
    )
    idle = (spans["start_ns"] - spans.groupby(block)["end_ns"].shift()).dropna() / 1e6
    (line,) = access_gaps.chart(study)["data"]  # the sampled run does not tell
    assert line["name"] == run.label
    assert line["x"][-1] == pytest.approx(idle.max(), abs=1e-6)
    for x, y in list(zip(line["x"], line["y"], strict=True))[::50]:
        assert y <= 100 * (idle <= x + 1e-6).mean() + 1e-3
        assert y >= 100 * (idle < x - 1e-6).mean() - 1e-3


def test_the_time_to_copy_a_block_back_is_that_of_the_swaps(tmp_path):
    fake = Fake({"cache.blocks": 24}, blocks=24, overflow="swap", stall=False)
    (run,) = load(["fake"], write_study(tmp_path, [fake])).runs
    back = run.preemptions(0)[lambda rows: rows["event"] == "resume"]
    expected = 1e3 * back["swap_in_s"].sum() / back["blocks"].sum()
    assert access_gaps.swap_in_ms(run) == pytest.approx(expected)
    assert expected > 0


def test_distances_are_drawn_in_print_for_the_runs_that_tell(study):
    _, cell = drawn(access_gaps.FIGURE, study).axes
    (line,) = cell.lines
    assert line.get_xdata()[-1] == 82 * 4 + 3  # all other blocks of all layers, and new ones


def test_metrics_of_accesses_are_drawn_where_they_are_known(study):
    axes = [cell for cell in drawn(access_metrics.FIGURE, study).axes if cell.get_visible()]
    shown = {cell.get_title("left"): len(cell.patches) for cell in axes}
    assert shown["Reads at a time"] == 1
    assert shown["Tokens read per token held"] == 2


def test_it_is_told_how_long_blocks_lie_untouched(study, run):
    share, time = (run.number(f"kv_idle_{name}").value for name in ("share", "p50_s"))
    found = " ".join(findings(study)).replace("\N{NO-BREAK SPACE}", " ")
    assert f"untouched {100 * share:.1f} % of the time between its accesses" in found
    assert f"{1e3 * time:.2f} ms at a time" in found


def test_it_is_told_what_was_traced(study):
    told = {c.name: [text for text, _ in c.values] for c in circumstances(study)}
    assert told["KV events"] == ["full", "sampled, 1 of 2 forward passes, 1 of 4 KV heads"]


@pytest.fixture(scope="module")
def access(run):
    return of_run(run, MOST_EVENTS_A_PAGE)


def test_the_page_has_every_event_of_the_passes_it_shows(access, events):
    found = Counter()
    for part in access["parts"]:
        starts = part["start_ns"] + np.cumsum(part["after_ns"]) + events["start_ns"].min()
        for i, start in enumerate(starts):
            kind, request = KINDS[part["kind"][i]], access["requests"][part["request"][i]]
            head = part["kv_head"][i]
            place = (part["step"], part["layer"], request, kind, head, part["block_position"][i])
            slots = (part["block"][i], part["offset_tokens"][i], part["tokens"][i])
            times = (start, start + part["duration_ns"][i], part["worker"][i])
            found[(*place, *slots, *times)] += 1
    columns = ["step", "layer", "request_id", "kind", "kv_head", "block_position", "block"]
    columns += ["offset_tokens", "tokens", "start_ns", "end_ns", "worker"]
    rows = events[columns].fillna({"kv_head": -1}).itertuples(index=False, name=None)
    assert found == Counter(rows)
    assert access["passes"][0] == {"step": 0, "phase": "prefill"}
    assert access["heads"] == list(range(8))


def test_of_more_events_than_a_page_takes_there_are_whole_passes_of_fewer_layers(run):
    some = of_run(run, 20_000)
    assert (some["layers"], some["layers_traced"]) == ([0], 4)
    assert [one["step"] for one in some["passes"]] == [0, 1, 2, 3, 4]
    assert not some["cut"]
    least = of_run(run, 1000)
    assert [part["step"] for part in least["parts"]] == [0]
    assert sum(len(part["kind"]) for part in least["parts"]) == 1000
    assert least["cut"]


def test_a_page_shares_its_room_among_the_experiments(study):
    both = accesses(list(study.runs))
    for run_id, one in both.items():
        assert run_id in {run.id for run in study.runs}
        assert sum(len(part["kind"]) for part in one["parts"]) <= MOST_EVENTS_A_PAGE // 2


def test_passes_are_kept_whole_as_long_as_they_fit(run):
    parts = traced_parts(run.trace.path, 0)
    everything = int(parts["events"].sum())
    assert within(parts, everything) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    assert within(parts, everything - 1) == ([0, 1, 2, 3, 4], [0, 3])


def test_the_page_shows_the_accesses_and_links_to_them(results, study, tmp_path):
    dirs = [str(run.directory) for run in study.runs]
    html = report(dirs, results, tmp_path).read_text(encoding="utf-8")
    page = Elements(html)
    data = [a for tag, a in page.elements if a.get("class") == "access-data"]
    assert [a["data-id"] for a in data] == ["traced", "sampled"]
    assert json.loads(json.dumps(page.data["traced"]))["layers_traced"] == 4
    assert 'href="#accesses"' in html


def test_the_perfetto_trace_has_each_access_within_its_stretch(results, events, tmp_path):
    directory = results / "experiments" / "traced"
    run = Run(directory)
    write_timeline(run, tmp_path, None)
    found = read_accesses(results / "tables" / "traced" / "kv_events.parquet", len(events))
    assert (found.shown, found.passes) == (5, 15)
    assert "first 5 of 15 forward passes" in found.warning
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
    none = Accesses(found.events.slice(0, 0), 0, 0)
    assert list(none.slices()) == []
