"""All raw records of a run are in its tables and metrics: none is lost, added or shortened.

The raw file is read by the tests themselves, and metrics are computed by loops over its events, so
that nothing of collect or analyse judges itself.
"""

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
import zstandard
from test_kv_events import traced_run

from kvscope import tables
from kvscope.collect.collector import collect_run
from kvscope.judge.records import read_records
from kvscope.tables.runfile import KERNEL_EVENTS
from kvscope_kernels.analyse.access import find_trace
from kvscope_kernels.analyse.events import read_events
from kvscope_kernels.analyse.reuse import reuses_of
from kvscope_kernels.collect import tables as kv_tables
from kvscope_kernels.kv_events import KINDS
from tests.unit.kv_flushes import GPU_CYCLES_PER_NS, Batch
from tests.unit.test_collect_run import profiled

FLUSHES = 37
Found = dict[str, Any]
Place = tuple[int, int, int]  # repeat, step, layer
PLACE = ["repeat", "step", "layer"]


def batches(seed: int, gpu: bool) -> list[Found]:
    """Passes of two repeats over three layers, of random requests, one record in them no event."""
    draw = random.Random(seed)
    flushes: list[Found] = []
    for number in range(FLUSHES):
        repeat, rest = divmod(number, FLUSHES // 2 + 1)
        step, layer = divmod(rest, 3)
        rows = [(draw.randint(1, 90), draw.choice([1, 1, 13])) for _ in range(draw.randint(1, 3))]
        at = 10**12 * repeat + 10**8 * step + 10**6 * layer
        batch = Batch(rows, gpu=gpu, repeat=repeat, step=step, layer=layer, seed=number)
        batch.origin_ticks = at
        flushes.append(batch.flush())
    flushes[5]["events"]["block"][2] = 2**40  # as where a kernel left memory unwritten
    return flushes


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param) / "run"
    repeats = [{"repeat": n, "start_ns": n * 10**12, "duration_s": 2.0} for n in range(2)]
    run = traced_run(directory, batches(1, request.param == "gpu"), repeats=repeats)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_tables, "BATCH_ROWS", 500)  # several flushes a batch, several batches
        collect_run(run, run)
    return run


def raw(run: Path) -> list[Found]:
    with (run / KERNEL_EVENTS).open("rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file).read()
    return [json.loads(line) for line in content.splitlines()]


def place_of(flush: Found) -> Place:
    return flush["repeat"], flush["step"], flush["layer"]


def raw_events(run: Path) -> dict[Place, list[Found]]:
    """The events of each flush, without records that are no events."""
    result = {}
    for flush in raw(run):
        columns = flush["events"]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        result[place_of(flush)] = [row for row in rows if row["block"] < 2**31]
    return result


def cycles_per_ns(run: Path) -> int:
    return GPU_CYCLES_PER_NS if "gpu" in run.parent.name else 1


def test_every_flush_has_its_events_in_the_table(run: Path) -> None:
    events = tables.read(tables.KV_EVENTS, run / "kv_events.parquet")
    due = raw_events(run)
    assert len(due) == FLUSHES
    counted = {place: len(rows) for place, rows in events.groupby(PLACE)}
    assert counted == {place: len(rows) for place, rows in due.items()}
    columns = ("block", "block_position", "offset_tokens", "tokens")
    names = [*PLACE, "kind", *columns]
    expected = Counter(
        (*place, KINDS[row["kind"]], *(row[name] for name in columns))
        for place, rows in due.items()
        for row in rows
    )
    assert Counter(events[names].itertuples(index=False, name=None)) == expected


def test_the_time_of_every_flush_is_conserved(run: Path) -> None:
    """Kind by kind; on a GPU a clock's rate is measured, so that each event may be 1 ns off."""
    events = tables.read(tables.KV_EVENTS, run / "kv_events.parquet")
    took = (events["end_ns"] - events["start_ns"]).groupby([events[c] for c in [*PLACE, "kind"]])
    result = took.agg(["sum", "size"]).to_dict("index")
    rate = cycles_per_ns(run)
    for place, rows in raw_events(run).items():
        for kind, name in enumerate(KINDS):
            expected = sum(r["duration_ticks"] for r in rows if r["kind"] == kind) / rate
            own = result[(*place, name)]
            assert abs(own["sum"] - expected) <= (0 if rate == 1 else own["size"]), (place, name)


def test_every_kernel_is_a_row_with_its_time_and_its_events(run: Path) -> None:
    kernels = tables.read(tables.KV_KERNELS, run / "kv_kernels.parquet")
    expected = []
    for flush in raw(run):
        segments, origin = flush["segments"], flush["origin_ticks"]
        for number, kernel in enumerate(flush["kernels"]):
            own = [
                n
                for n, k in zip(segments["events"], segments["kernel"], strict=True)
                if k == number
            ]
            times = origin + kernel["start_ticks"], origin + kernel["end_ticks"]
            expected.append((*place_of(flush), kernel["kernel"], *times, sum(own)))
    columns = [*PLACE, "kernel", "start_ns", "end_ns", "events"]
    result = list(kernels[columns].itertuples(index=False, name=None))
    lost = [n for n, (one, other) in enumerate(zip(result, expected, strict=True)) if one != other]
    assert lost == [n for n in lost if result[n][:6] == expected[n][:6]]  # but for the record
    assert len(lost) <= 1
    assert (kernels["expected_events"] >= kernels["events"]).all()


def walk(run: Path, repeat: int) -> tuple[list[int], list[int]]:
    """Idle times and distances of all reuses of a repeat, by a walk over its bursts in order."""
    spans: dict[tuple[int, int, str, int], list[int]] = {}
    fills = set()
    events = tables.read(tables.KV_EVENTS, run / "kv_events.parquet")
    for row in events[events["repeat"] == repeat].to_dict("records"):
        burst = (row["step"], row["layer"], row["request_id"], row["block"])
        span = spans.setdefault(burst, [row["start_ns"], row["end_ns"]])
        span[0], span[1] = min(span[0], row["start_ns"]), max(span[1], row["end_ns"])
        if row["kind"].endswith("write") and row["offset_tokens"] == 0:
            fills.add(burst)
    ordered = sorted(spans, key=lambda burst: spans[burst][0])
    last: dict[tuple[int, int], int] = {}
    idle, distances = [], []
    for number, burst in enumerate(ordered):
        _, layer, request, block = burst
        before = last.get((layer, block))
        last[layer, block] = number
        if before is None or ordered[before][2] != request or burst in fills:
            continue
        idle.append(spans[burst][0] - spans[ordered[before]][1])
        between = {(other[1], other[3]) for other in ordered[before + 1 : number]}
        distances.append(len(between - {(layer, block)}))
    return idle, distances


def decoded(folder: Path, seed: int) -> Path:
    """A run of a few requests that decode pass after pass, each in its own blocks."""
    draw = random.Random(seed)
    contexts = [draw.randint(5, 60) for _ in range(3)]
    flushes = []
    for step in range(6):
        alive = [row for row in range(3) if row == 0 or draw.random() < 0.7]
        for layer in range(2):
            result = Batch([(contexts[row], 1) for row in alive], step=step, layer=layer).flush()
            names = [str(100 + row) for row in alive]
            blocks = [
                [20 * row + n for n in range(len(t))]
                for row, t in zip(alive, result["block_table"], strict=True)
            ]
            renamed = {
                old: new
                for table, own in zip(result["block_table"], blocks, strict=True)
                for old, new in zip(table, own, strict=True)
            }
            result["events"]["block"] = [renamed[b] for b in result["events"]["block"]]
            result |= {"requests": names, "block_table": blocks}
            result["origin_ticks"] = 10**7 * step + 10**6 * layer
            flushes.append(result)
        contexts = [n + (row in alive) for row, n in enumerate(contexts)]
    return traced_run(folder, flushes)


@pytest.mark.parametrize("seed", range(3))
def test_reuses_are_those_of_a_walk_over_the_events(seed: int, tmp_path: Path) -> None:
    run = decoded(tmp_path / "run", seed)
    collect_run(run, run)
    trace = find_trace(read_records(run))
    assert trace is not None
    idle, distances = walk(run, 0)
    assert len(distances) > 10
    result = reuses_of(trace.bursts(read_events(trace.path, 0)))
    assert sorted(result.idle_ns) == sorted(idle)
    assert sorted(result.distance_blocks) == sorted(distances)
    value = trace.metric("kv_reuse_distance_p50_blocks", pd.DataFrame({"step": []}))
    assert value == median(distances)


def test_the_timeline_has_every_row_of_the_tables_and_their_time(tmp_path: Path) -> None:
    run = profiled(tmp_path, offset_ns=123_456)
    run.layers = [
        {"repeat": 0, "step": step, "layer": layer, "start_s": 0.1 * step, "duration_s": 0.01}
        for step in range(2)
        for layer in range(5)
    ]
    run.requests = [
        {"repeat": 0, "request_id": str(n), "arrival_s": 0.1 * n, "finished_s": 0.7}
        for n in range(4)
    ]
    collect_run(run.write(), tmp_path / "out")
    timeline = tables.read(tables.TIMELINE, tmp_path / "out" / "timeline.parquet")
    took = (timeline["end_ns"] - timeline["start_ns"]).groupby(timeline["kind"])
    expected: dict[str, list[int]] = defaultdict(list)
    for kind, rows in (("step", run.steps), ("layer", run.layers)):
        expected[kind] = [round(row["duration_s"] * 1e9) for row in rows]
    expected["request"] = [round((r["finished_s"] - r["arrival_s"]) * 1e9) for r in run.requests]
    expected["repeat"] = [2 * 10**9]
    for kind, table in (
        *(("kernel", tables.GPU_KERNELS), ("copy", tables.GPU_MEMCPYS)),
        ("range", tables.NVTX_RANGES),
    ):
        read = tables.read(table, tmp_path / "out" / table.file)
        expected[kind] = [int(n) for n in read["end_ns"] - read["start_ns"]]
    assert {kind: sorted(times) for kind, times in took.apply(list).items()} == {
        kind: sorted(times) for kind, times in expected.items()
    }
