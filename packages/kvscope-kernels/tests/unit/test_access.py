"""Metrics of KV events: small cases by hand, larger ones against slow and obvious counting."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.judge.records import Records
from kvscope.tables.runfile import write_run
from kvscope_kernels.analyse.access import KvTrace, covered_ns, find_trace
from kvscope_kernels.analyse.access_metrics import METRICS
from kvscope_kernels.analyse.events import Events, phases_of, read_events, traced_parts
from kvscope_kernels.analyse.reuse import Reuses, bursts_of, distinct_between, keys, reuses_of
from kvscope_kernels.kv_events import KINDS
from tests.run_records import facts_of
from tests.unit.kv_access_fixture import Served, events_frame, serve, write_traced_run

SECONDS = 1e-9
PASSES = pd.DataFrame({"step": [0, 1], "duration_s": [400e-9, 600e-9]})


def event(step, kind, position, start, end, **more):
    """An access; by default of request '0' in layer 0 by head 0, block number 10 + position."""
    row = {"repeat": 0, "step": step, "layer": 0, "request_id": "0", "phase": "decode"}
    row |= {"kind": kind, "kv_head": 0, "block": 10 + position, "block_position": position}
    row |= {"offset_tokens": 0, "tokens": 4, "start_ns": start, "end_ns": end, "worker": 0}
    return row | more


BY_HAND = [
    # Pass 0: two blocks, each read twice (two tiles), K before V.
    event(0, "k_write", 0, 0, 10, kv_head=None),
    event(0, "k_write", 1, 10, 20, kv_head=None),
    event(0, "k_read", 0, 100, 110),
    event(0, "v_read", 0, 130, 140),
    event(0, "k_read", 0, 200, 210),
    event(0, "k_read", 1, 210, 220, tokens=2),
    event(0, "v_read", 0, 250, 260),
    event(0, "v_read", 1, 260, 280, tokens=2),
    # Pass 1, by two workers at once.
    event(1, "k_read", 0, 1000, 1010),
    event(1, "k_read", 1, 1000, 1010, worker=1, tokens=3),
    event(1, "v_read", 0, 1020, 1030),
    event(1, "v_read", 1, 1015, 1025, worker=1, tokens=3),
]


def write(path, rows):
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    frame = frame.reindex(columns=tables.KV_EVENTS.names)
    tables.write(tables.KV_EVENTS, frame, path / "kv_events.parquet")
    return KvTrace(path / "kv_events.parquet", block_bytes=256)


NOBODY = tables.PREEMPTIONS.empty()


def reuses(trace: KvTrace) -> Reuses:
    return reuses_of(trace.bursts(read_events(trace.path, trace.repeat)))


@pytest.fixture(scope="module")
def served():
    return serve(Served(repeats=1))


@pytest.fixture(scope="module")
def frame(served):
    return events_frame(served)


@pytest.fixture(scope="module")
def trace(frame, tmp_path_factory):
    return write(tmp_path_factory.mktemp("events"), frame)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("kv_lag_p50_s", 30e-9),  # of 30, 50, 50, 20 and 15
        ("kv_read_parallelism", 110 / 95),  # 70 alone; 40 of two workers within 25
        ("kv_read_amplification", 34 / 26),  # block 0 is read twice by pass 0
        ("kv_burst_p50_s", (30 + 260) / 2 * SECONDS),  # of 25, 30, 260 and 270
        ("kv_idle_p50_s", (740 + 720) / 2 * SECONDS),
        ("kv_idle_share", 1460 / (1460 + 260 + 270 + 30 + 25)),
        ("kv_reuse_distance_p50_blocks", 1),
        ("kv_reuse_distance_p50_bytes", 256),
        ("kv_access_free_share", 1 - (20 + 70 + 25) / 1000),
    ],
)
def test_a_case_worked_out_by_hand(tmp_path, metric, value):
    found = write(tmp_path, BY_HAND).metric(metric, PASSES)
    assert found == pytest.approx(value)


def test_a_block_that_is_filled_anew_or_goes_to_another_request_was_not_idle_but_free(tmp_path):
    refilled = event(2, "k_write", 0, 2000, 2010)
    appended = event(2, "k_write", 1, 2000, 2010, offset_tokens=3, tokens=1)
    others = event(2, "k_read", 2, 2000, 2010, block=11, request_id="1")
    rows = [*BY_HAND, refilled, appended, others]
    found = reuses(write(tmp_path, rows))
    assert sorted(found.idle_ns) == [720, 740, 2000 - 1025]


def decodes(request, block, *passes):
    """A read of a block by a request in each of these passes, at 1000 ns a pass, of 10 ns each."""
    return [
        event(step, "k_read", 0, 1000 * step, 1000 * step + 10, request_id=request, block=block)
        for step in passes
    ]


def preempted(path, *rows, event="preempt"):
    """A trace beside which `preemptions` says that these (repeat, step, request) were."""
    frame = pd.DataFrame(rows, columns=["repeat", "step", "request_id"])
    rest = {"event": event, "policy": "swap", "refused": False, "time_source": "measured"}
    numbers = dict.fromkeys(("blocks", "tokens", "bytes"), 0)
    frame = frame.assign(**rest, **numbers).reindex(columns=tables.PREEMPTIONS.names)
    file = path / "preemptions.parquet"
    tables.write(tables.PREEMPTIONS, frame, file)
    return file


# Request a reads block 7 in passes 0 and 1, is away, and has it again from pass 8 on.
AWAY = decodes("a", 7, 0, 1, 8, 9)


@pytest.mark.parametrize(
    ("who", "idle"),
    [
        ((0, 2, "a"), [990, 990]),  # the scheduling of pass 2 took its blocks
        ((0, 8, "a"), [990, 990]),
        ((0, 9, "a"), [990, 6990]),
        ((0, 2, "b"), [990, 990, 6990]),  # somebody else
        ((1, 2, "a"), [990, 990, 6990]),  # in another repeat
    ],
)
def test_a_preemption_ends_the_use_of_a_block_though_the_request_gets_it_back(tmp_path, who, idle):
    file = preempted(tmp_path, who)
    trace = replace(write(tmp_path, AWAY + decodes("b", 3, 5)), preemptions=file)
    assert sorted(reuses(trace).idle_ns) == idle
    share = sum(idle) / (sum(idle) + 50)
    assert trace.metric("kv_idle_share", PASSES) == pytest.approx(share)


def test_a_resumption_alone_ends_nothing(tmp_path):
    file = preempted(tmp_path, (0, 2, "a"), event="resume")
    trace = replace(write(tmp_path, AWAY), preemptions=file)
    assert sorted(reuses(trace).idle_ns) == [990, 990, 6990]


def test_a_block_that_was_anothers_meanwhile_is_not_reused(tmp_path):
    found = reuses(write(tmp_path, AWAY + decodes("b", 7, 4, 5)))
    assert sorted(found.idle_ns) == [990, 990, 990]


def found(path, *rows):
    """A file `hits` of these (step, request, block, owner, cached step)."""
    frame = pd.DataFrame(rows, columns=["step", "request_id", "block", "owner", "cached_step"])
    frame = frame.assign(repeat=0, block_position=0, resumed=False, in_use=True)
    file = path / "hits.parquet"
    tables.write(tables.HITS, frame.reindex(columns=tables.HITS.names), file)
    return file


def test_a_block_that_another_request_finds_is_reused(tmp_path):
    trace = write(tmp_path, AWAY[:2] + decodes("b", 7, 4))
    assert list(reuses(trace).idle_ns) == [990]
    assert sorted(reuses(replace(trace, hits=found(tmp_path, (4, "b", 7, "a", 0)))).idle_ns) == [
        990,
        2990,
    ]


def test_accesses_to_a_shared_block_in_a_pass_are_one_burst(tmp_path):
    trace = write(tmp_path, AWAY[:2] + decodes("b", 7, 1))
    events = read_events(trace.path, 0)
    assert len(trace.bursts(events).block) == 3
    trace = replace(trace, hits=found(tmp_path, (1, "b", 7, "a", 0)))
    assert len(trace.bursts(events).block) == 2


def test_a_request_that_finds_its_own_block_again_reuses_it(tmp_path):
    lost = preempted(tmp_path, (0, 2, "a"))
    trace = replace(write(tmp_path, AWAY), preemptions=lost)
    assert sorted(reuses(trace).idle_ns) == [990, 990]
    trace = replace(trace, hits=found(tmp_path, (8, "a", 7, "a", 0)))
    assert sorted(reuses(trace).idle_ns) == [990, 990, 6990]
    other = replace(trace, hits=found(tmp_path, (8, "a", 6, "a", 0)))
    assert sorted(reuses(other).idle_ns) == [990, 990]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), min_size=1, max_size=40),
    st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=12),
)
def test_reuses_are_those_of_a_walk_through_the_passes(uses, away):
    codes = [ord(name) - ord("a") for name, _ in uses]
    count, zeros = np.arange(len(uses)), np.zeros(len(uses), np.int64)
    blocks = np.array([block for _, block in uses])
    numbers = (zeros, np.array(codes), zeros, zeros, blocks, zeros, zeros, zeros + 1, zeros)
    events = Events(("a", "b"), count, *numbers, 10 * count, 10 * count + 1)
    rows = pd.DataFrame(sorted(away), columns=["request_id", "step"])
    expected: list[int] = []
    holder: dict[int, tuple[str, int]] = {}
    for step, (name, block) in enumerate(uses):
        for gone in (who for who, when in away if when == step):
            holder = {b: held for b, held in holder.items() if held[0] != gone}
        if block in holder and holder[block][0] == name:
            expected.append(10 * (step - holder[block][1]) - 1)
        holder[block] = (name, step)
    for batches in ([events], events.batches(1)):
        assert list(reuses_of(bursts_of(batches, rows)).idle_ns) == expected


def test_lags_are_those_of_reads_paired_one_by_one(trace, frame):
    place = ["step", "layer", "request_id", "kv_head", "block_position", "worker"]
    reads = frame[frame["kind"].str.endswith("read")].sort_values("start_ns")
    paired = reads.assign(n=reads.groupby([*place, "kind"]).cumcount()).set_index([*place, "n"])
    starts = paired.pivot(columns="kind", values="start_ns")
    lags = starts["v_read"] - starts["k_read"]
    assert lags.notna().all()
    for q in (50, 95):
        expected = np.percentile(lags, q) * SECONDS
        assert trace.metric(f"kv_lag_p{q}_s", PASSES) == pytest.approx(expected)


def test_a_v_read_without_its_k_read_is_in_no_pair(tmp_path):
    alone = event(2, "v_read", 5, 2000, 2010)
    found = write(tmp_path, [*BY_HAND, alone]).metric("kv_lag_p50_s", PASSES)
    assert found == pytest.approx(30e-9)


def test_amplification_is_tokens_read_by_tiles_over_tokens_of_contexts(trace, served):
    read = held = 0
    for prompt in served.prompts:
        tiles = [*range(served.tile, prompt, served.tile), prompt]
        decodes = [prompt + n for n in range(1, served.outputs)]
        read += sum(tiles) + sum(decodes)
        held += prompt + sum(decodes)
    assert trace.metric("kv_read_amplification", PASSES) == pytest.approx(read / held)


def test_a_block_of_which_each_tile_sees_more_counts_as_the_last_tile_sees_it(tmp_path):
    rows = [
        event(0, kind, 0, at, at + 10, tokens=tokens)
        for kind, at, tokens in (
            *(("k_read", 0, 2), ("v_read", 10, 2)),
            *(("k_read", 20, 4), ("v_read", 30, 4)),
        )
    ]
    found = write(tmp_path, rows).metric("kv_read_amplification", PASSES)
    assert found == pytest.approx(12 / 8)


def test_idle_times_are_those_between_passes_counted_block_by_block(trace, frame):
    block = ["layer", "request_id", "block"]
    spans = frame.groupby([*block, "step"])[["start_ns", "end_ns"]].agg(
        {"start_ns": "min", "end_ns": "max"}
    )
    idle = (spans["start_ns"] - spans.groupby(block)["end_ns"].shift()).dropna()
    found = reuses(trace)
    assert sorted(found.idle_ns) == sorted(idle)
    share = idle.sum() / (idle.sum() + (spans["end_ns"] - spans["start_ns"]).sum())
    assert trace.metric("kv_idle_share", PASSES) == pytest.approx(share)


def test_neither_the_order_of_rows_nor_the_size_of_batches_matters(trace, frame, tmp_path):
    shuffled = write(tmp_path, frame.sample(frac=1, random_state=1))
    for name in (metric.name for metric in METRICS):
        expected = trace.metric(name, PASSES)
        assert shuffled.metric(name, PASSES) == pytest.approx(expected, nan_ok=True)
    events = read_events(trace.path, 0)
    for size in (1, 5000, 10**6):
        batches = list(events.batches(size))
        assert sum(map(len, batches)) == len(events)
        assert len(batches) == (1 if size > len(events) else len(np.unique(events.step)))
        found, whole = (bursts_of(some, NOBODY) for some in (batches, [events]))
        assert list(found.end_ns) == list(whole.end_ns)


@given(st.lists(st.integers(0, 6), max_size=60))
def test_distinct_blocks_between_two_uses_are_counted_as_by_a_set(sequence):
    last: dict[int, int] = {}
    previous, expected = [], []
    for place, thing in enumerate(sequence):
        before = last.get(thing, -1)
        previous.append(before)
        expected.append(-1 if before < 0 else len(set(sequence[before + 1 : place])))
        last[thing] = place
    found = distinct_between(np.array(previous, np.int64))
    assert list(found) == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=30))
def test_covered_time_is_counted_as_by_a_set(intervals):
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([length for _, length in intervals], np.int64)
    points = {at for begin, length in intervals for at in range(begin, begin + length)}
    assert covered_ns(start, end) == len(points)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2**40), st.integers(5, 2**40))))
def test_keys_are_alike_and_ordered_as_the_rows_are(rows):
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [
        np.empty(0, np.int64)
    ]
    found = keys(*columns)
    for one, key in zip(rows, found, strict=True):
        for other, against in zip(rows, found, strict=True):
            assert (key < against) == (one < other)


WHOLE = {metric.name for metric in METRICS}
OF_A_BLOCK = {"kv_idle_p50_s", "kv_idle_p95_s", "kv_idle_share"}
OF_ALL_HEADS = {"kv_read_parallelism", "kv_burst_p50_s", "kv_burst_p95_s", *OF_A_BLOCK}
OF_ALL_LAYERS = {"kv_reuse_distance_p50_blocks", "kv_reuse_distance_p50_bytes"}


@pytest.mark.parametrize(
    ("strides", "lost"),
    [
        ({}, set()),
        ({"head_stride": 2}, {*OF_ALL_HEADS, "kv_access_free_share"}),
        ({"layer_stride": 2}, {*OF_ALL_LAYERS, "kv_access_free_share"}),
        ({"step_stride": 2}, {*OF_A_BLOCK, *OF_ALL_LAYERS}),
    ],
)
def test_a_sample_gives_the_metrics_that_it_tells_and_no_others(tmp_path, strides, lost):
    run = write_traced_run(tmp_path, served=Served(prompts=(20, 90), repeats=2, **strides))
    metrics = tables.read(tables.METRICS, tmp_path / "tables" / run.name / "metrics.parquet")
    found = metrics.set_index("metric").loc[sorted(WHOLE)]
    assert {name for name, row in found.iterrows() if math.isnan(row["value"])} == lost
    assert (found["repeats_valid"] == [0 if name in lost else 2 for name in found.index]).all()


def test_a_sample_of_passes_or_layers_does_not_change_the_metrics_that_it_determines(tmp_path):
    prompts = (20, 90)
    full, sampled = (
        serve(Served(prompts=prompts, repeats=1, layer_stride=stride)) for stride in (1, 2)
    )
    values = []
    for name, done in (("full", full), ("sampled", sampled)):
        (tmp_path / name).mkdir()
        values.append(
            write(tmp_path / name, events_frame(done)).metric("kv_read_amplification", PASSES)
        )
    assert values[0] == pytest.approx(values[1])


def test_a_run_that_was_not_traced_has_no_trace(tmp_path):
    write_run(tmp_path, {"experiment_id": "x", "status": "complete", "files": {}})
    assert find_trace(Records(tmp_path, tables_directory=tmp_path)) is None
    tables.write(tables.KV_EVENTS, tables.KV_EVENTS.empty(), tmp_path / "kv_events.parquet")
    assert find_trace(Records(tmp_path, tables_directory=tmp_path)) is None


def test_a_repeat_without_events_has_no_value(tmp_path):
    empty = write(tmp_path, BY_HAND).of_repeat(7)
    assert all(math.isnan(empty.metric(name, PASSES)) for name in WHOLE)


def test_a_traced_run_that_was_not_collected_names_the_command(tmp_path):
    facts = facts_of(tracing={"name": "full"})
    assert (
        find_trace(Records(tmp_path, facts=facts | {"status": "failed"}, tables_directory=tmp_path))
        is None
    )
    trace = find_trace(Records(tmp_path, facts=facts, tables_directory=tmp_path))
    assert trace is not None
    with pytest.raises(BadInput, match=r"kv_events\.parquet: no such file; .*kvscope collect"):
        trace.metric("kv_lag_p50_s", PASSES)


def test_events_of_published_traces_have_no_heads_and_may_have_no_request(tmp_path):
    unknown = {"kv_head": None, "request_id": None, "phase": None}
    found = read_events(
        write(tmp_path, [*BY_HAND[:3], event(0, "v_read", 0, 5, 6) | unknown]).path, 0
    )
    assert list(found.kv_head) == [-1, -1, 0, -1]
    assert list(found.request) == [0, 0, 0, -1]
    assert [KINDS[kind] for kind in found.kind] == ["k_write", "k_write", "k_read", "v_read"]


def test_row_groups_with_different_requests_are_read_together(trace, frame, tmp_path):
    path = tmp_path / "kv_events.parquet"
    table = tables.to_arrow(tables.KV_EVENTS, frame.sort_values(["request_id", "step"]))
    pq.write_table(table, path, row_group_size=500)
    assert len(read_events(path, 0)) == len(frame)
    assert traced_parts(path, 0).equals(traced_parts(trace.path, 0))


def test_parts_tell_where_events_are(trace, frame, served):
    parts = traced_parts(trace.path, 0)
    assert parts["events"].sum() == len(frame)
    assert len(parts) == served.outputs * served.layers
    assert phases_of(parts) == {0: "prefill"} | dict.fromkeys(range(1, served.outputs), "decode")
    some = read_events(trace.path, 0, steps=[1, 3], layers=[2])
    wanted = frame["step"].isin([1, 3]) & (frame["layer"] == 2)
    assert len(some) == wanted.sum()
