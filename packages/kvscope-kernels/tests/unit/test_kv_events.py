"""Raw KV events become tables: every value, every time; damage is told; the verdict is kept."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.collect.collector import collect_run
from kvscope.metrics.experiment import analyse
from kvscope.report.check_run import check_run
from kvscope.tables.runfile import KERNEL_EVENTS, file_records, write_run
from kvscope.tables.runschema import TracingRecord
from kvscope_kernels.collect import tables as kv_tables
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import read_flushes
from kvscope_kernels.collect.tables import write_kv_tables
from kvscope_kernels.kv_events import KINDS
from kvscope_kernels.oracles.judge import Judge
from kvscope_kernels.oracles.registry import NAMES
from kvscope_kernels.oracles.run_facts import RunFacts
from tests.unit.kv_flushes import (
    Batch,
    compressed,
    tracing,
    with_columns,
    with_records,
    write_flushes,
)
from tests.unit.nsys_fixture import NsysFile, RunDirectory, global_id

SECOND = 1_000_000_000
FILE = Path("run.json")
Found = dict[str, Any]


def clock(*samples: tuple[int, int], ns_per_tick: float = 1.0) -> EventClock:
    return EventClock.of_run(tracing(*samples, ns_per_tick=ns_per_tick), FILE)


SAME = clock((0, 0), (SECOND, SECOND))  # a tick is a nanosecond


def collected(flushes: list[Found], folder: Path, of: EventClock = SAME) -> tuple[Any, Any, Found]:
    raw = write_flushes(folder / KERNEL_EVENTS, flushes)
    account = write_kv_tables(raw, folder / "out", Judge(RunFacts(of)))
    events, kernels = (
        tables.read(table, folder / "out" / f"{table.name}.parquet")
        for table in (tables.KV_EVENTS, tables.KV_KERNELS)
    )
    return events, kernels, account


def batches_of_a_run(gpu: bool = False) -> list[Found]:
    """Two repeats of two passes over two layers: a mixed pass, then a decode."""
    return [
        Batch(
            [(20, 25), (70, 1), (0, 33)] if step == 0 else [(45, 1), (71, 1)],
            tile_tokens=10,
            gpu=gpu,
            repeat=repeat,
            step=step,
            layer=layer,
            origin_ticks=1000 * SECOND * repeat + 10_000_000 * step + 100_000 * layer,
            seed=layer,
        ).flush()
        for repeat in range(2)
        for step in range(2)
        for layer in range(2)
    ]


def rows_of(found: Found) -> list[dict[str, Any]]:
    """The rows of a CPU's flush on a clock of nanoseconds, computed record by record."""
    segments, events = found["segments"], found["events"]
    workers = [
        w for w, n in zip(segments["worker"], segments["events"], strict=True) for _ in range(n)
    ]
    rows = []
    for i, kind in enumerate(events["kind"]):
        row, head = events["row"][i], events["kv_head"][i]
        start = found["origin_ticks"] + events["start_ticks"][i]
        rows.append(
            {
                **{key: found[key] for key in ("repeat", "step", "layer")},
                "request_id": found["requests"][row],
                "phase": found["phases"][row],
                "kind": KINDS[kind],
                "kv_head": None if head < 0 else head,
                **{
                    key: events[key][i]
                    for key in ("block", "block_position", "offset_tokens", "tokens")
                },
                "start_ns": start,
                "end_ns": start + events["duration_ticks"][i],
                "worker": workers[i],
                "sm": None,
            }
        )
    return rows


@pytest.mark.parametrize("batch_rows", [1, 300, 1 << 20])
def test_every_event_is_a_row_as_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(kv_tables, "BATCH_ROWS", batch_rows)
    flushes = batches_of_a_run()
    events, _, account = collected(flushes, tmp_path)
    expected = pd.DataFrame([row for found in flushes for row in rows_of(found)])
    expected = expected.astype({"kv_head": float, "sm": float})
    pd.testing.assert_frame_equal(events, expected, check_dtype=False)
    assert account["rows"] == len(expected)
    groups = pq.ParquetFile(tmp_path / "out" / "kv_events.parquet").num_row_groups
    assert groups == {1: 8, 300: 2, 1 << 20: 1}[batch_rows]


def test_an_event_of_an_unknown_row_has_no_request(tmp_path: Path) -> None:
    flush = Batch([(20, 1)]).flush()
    flush["events"]["row"][-1] = 300
    events, _, account = collected([flush], tmp_path)
    assert events["request_id"].isna().sum() == events["phase"].isna().sum() == 1
    assert account["oracles"]["reads_repeated"]["violations"] == 1


def test_a_kernel_is_a_row_with_its_expected_and_recorded_events(tmp_path: Path) -> None:
    flush = Batch([(20, 25), (70, 1)], block_size=16, tile_tokens=10, kv_heads=[0, 3]).flush()
    flush["segments"]["dropped"][-1] = 5
    _, kernels, account = collected([flush], tmp_path)
    write, attention = kernels.to_dict("records")
    # Tokens 20 … 44 fall into 2 blocks, token 70 into 1; the tiles end at 30, 40, 45 and 71.
    assert (write["kernel"], write["expected_events"]) == ("write", 2 * (2 + 1))
    reads = 2 * 2 * (2 + 3 + 3 + 5)
    assert (attention["kernel"], attention["expected_events"]) == ("attention", reads)
    assert [row["events"] for row in (write, attention)] == [6, reads]
    assert [row["dropped_events"] for row in (write, attention)] == [0, 5]
    assert attention["phase"] == "mixed"
    start = flush["origin_ticks"] + flush["kernels"][1]["start_ticks"]
    assert attention["start_ns"] == start
    assert account["oracles"]["events_dropped"]["violations"] == 5


def test_how_far_an_event_lies_outside_of_its_kernel_is_its_residual(tmp_path: Path) -> None:
    flush = Batch([(20, 1)]).flush()
    last = max(
        start + took
        for start, took in zip(
            flush["events"]["start_ticks"], flush["events"]["duration_ticks"], strict=True
        )
    )
    flush["kernels"][1]["end_ticks"] = last - 13
    _, kernels, account = collected([flush], tmp_path)
    assert kernels["residual_ns"].tolist() == [0, 13]
    assert account["residual_ns"] == 13


def test_a_gpu_s_events_lie_where_its_thread_blocks_were(tmp_path: Path) -> None:
    flushes = batches_of_a_run(gpu=True)
    events, kernels, account = collected(flushes, tmp_path)
    assert {name: v["violations"] for name, v in account["oracles"].items()} == dict.fromkeys(
        NAMES, 0
    )
    assert set(events["sm"]) == {0, 1, 2, 3}
    place = ["repeat", "step", "layer"]
    joined = events.assign(
        kernel=np.where(events["kind"].str.endswith("write"), "write", "attention")
    ).merge(kernels, on=[*place, "kernel"], suffixes=("", "_of_kernel"))
    assert len(joined) == len(events)
    assert (joined["start_ns"] >= joined["start_ns_of_kernel"]).all()
    assert (joined["end_ns"] <= joined["end_ns_of_kernel"]).all()
    assert kernels["residual_ns"].eq(0).all()
    one = flushes[0]
    segments, first = one["segments"], one["events"]["start_ticks"][0]
    into_ns = (first - segments["start_clock"][0]) / 2
    expected = one["origin_ticks"] + segments["start_timer"][0] + into_ns
    assert abs(events["start_ns"].iloc[0] - expected) <= 1


# --- clocks

samples = st.lists(
    st.tuples(st.integers(1, 10**13), st.integers(1, 10**13)), min_size=2, max_size=5
)


@given(
    origin=st.integers(0, 2**63 - 10**15),
    steps=samples,
    instants=st.lists(st.integers(-(10**13), 10**14), min_size=1, max_size=5),
)
def test_ticks_become_ns_by_the_line_between_the_readings(
    origin: int, steps: list[tuple[int, int]], instants: list[int]
) -> None:
    steps = [(ticks, max(1, ticks * min(ns, 10**6) // 10**6)) for ticks, ns in steps]
    ticks, host = (np.cumsum([step[i] for step in steps]).tolist() for i in (0, 1))
    readings = [(origin + t, ns) for t, ns in zip(ticks, host, strict=True)]
    instants = [t for t in instants if 0 <= origin + t < 2**63] or [ticks[0]]
    result = clock(*readings).ns(np.array(instants, np.int64), origin)
    for instant, ns in zip(instants, result.tolist(), strict=True):
        piece = sum(instant >= t for t in ticks[1:-1])
        slope = Fraction(host[piece + 1] - host[piece], ticks[piece + 1] - ticks[piece])
        exact = host[piece] + (instant - ticks[piece]) * slope
        # A double holds 53 bits: 10^14 ns are good to a hundredth, and rounding costs a half.
        assert abs(ns - exact) <= 1


def test_a_clock_read_once_goes_by_its_nominal_rate() -> None:
    result = clock((2**62, 1000), ns_per_tick=0.5).ns(np.array([0, 10, 11]), 2**62)
    assert result.tolist() == [1000, 1005, 1006]


@pytest.mark.parametrize("broken", [{}, {"clock": None}, {"clock": {"name": "tsc", "samples": []}}])
def test_a_run_without_a_clock_is_refused(broken: Found) -> None:
    with pytest.raises(BadInput, match=r"run.json: tracing.clock"):
        EventClock.of_run(TracingRecord.model_validate({"name": "full"} | broken), FILE)


# --- damage


def test_a_file_of_several_frames_is_one_file(tmp_path: Path) -> None:
    flushes = batches_of_a_run()
    path = tmp_path / KERNEL_EVENTS
    path.write_bytes(compressed(flushes[:3]) + compressed(flushes[3:]))
    assert [f.where for f in read_flushes(path)] == [
        f"repeat {f['repeat']}, step {f['step']}, layer {f['layer']}" for f in flushes
    ]


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_reported(share: float, tmp_path_factory: Any) -> None:
    whole = compressed(batches_of_a_run())
    path = tmp_path_factory.mktemp("cut") / KERNEL_EVENTS
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadInput, match=f"{KERNEL_EVENTS}: .*cut"):
        list(read_flushes(path))


def without(key: str) -> Found:
    return {k: v for k, v in Batch([(20, 1)]).flush().items() if k != key}


def broken_by(**changes: Any) -> Found:
    return Batch([(20, 1)]).flush() | changes


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (without("block_size"), "key 'block_size' is missing"),
        (without("events"), "key 'events' is missing"),
        (broken_by(version=3), "its version is 3"),
        (broken_by(block_size=0), "block_size is 0"),
        (broken_by(phases=["decode", "decode"]), "phases has 2 rows, the batch 1"),
        (broken_by(phases=["asleep"]), "phase is 'asleep'"),
        (broken_by(events=None), "not subscriptable"),
        (broken_by(kernels=[]), "a kernel beyond the 0 given"),
        ([1], "list indices"),
    ],
)
def test_a_line_that_is_no_flush_is_reported(tmp_path: Path, found: Any, wrong: str) -> None:
    good = Batch([(20, 1)]).flush()
    path = write_flushes(tmp_path / KERNEL_EVENTS, [good, found])
    with pytest.raises(BadInput, match=f"{KERNEL_EVENTS}: line 2 is not a flush.*{wrong}"):
        list(read_flushes(path))


def test_events_that_the_segments_do_not_count_are_told(tmp_path: Path) -> None:
    flush = Batch([(20, 1)]).flush()
    flush["events"]["tokens"].pop()
    path = write_flushes(tmp_path / KERNEL_EVENTS, [flush])
    with pytest.raises(BadInput, match=r"events.tokens has \d+ values, the segments hold \d+"):
        list(read_flushes(path))


@pytest.mark.parametrize(
    ("name", "value"), [("block", 2**40), ("tokens", -(2**31) - 1), ("start_ticks", 2**63 - 1)]
)
def test_a_record_that_no_event_has_is_left_out_and_counted(
    tmp_path: Path, name: str, value: int
) -> None:
    """A kernel left memory unwritten: its run is not valid, and the other records remain."""
    found = Batch([(20, 1)]).flush()
    found["events"][name][1] = value
    (flush,) = read_flushes(write_flushes(tmp_path / KERNEL_EVENTS, [found]))
    assert flush.unreadable == 1
    assert len(flush) == len(found["events"]["kind"]) - 1
    (complaint,) = [c for c in faults(traced_run(tmp_path / "run", [found])) if "records_" in c]
    assert "1 records are not events" in complaint


@pytest.mark.parametrize("content", [b"", b"no zstandard", zstandard.compress(b"no JSON\n")])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / KERNEL_EVENTS
    path.write_bytes(content)
    with pytest.raises(BadInput, match=KERNEL_EVENTS):
        list(read_flushes(path))
    with pytest.raises(BadInput, match="no such file"):
        list(read_flushes(tmp_path / "absent"))


def test_a_damaged_file_leaves_no_table(tmp_path: Path) -> None:
    raw = tmp_path / KERNEL_EVENTS
    raw.write_bytes(compressed(batches_of_a_run())[:-20])
    with pytest.raises(BadInput, match="cut"):
        write_kv_tables(raw, tmp_path / "out", Judge(RunFacts(SAME)))
    assert not list((tmp_path / "out").glob("*"))


# --- the run's directory


def traced_run(folder: Path, flushes: list[Found], **record: Any) -> Path:
    """A run that finished and was traced; its host tables are empty where nothing is given."""
    folder.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(folder, **record).write()
    for table in (tables.WORKLOAD, tables.BATCH, tables.TRANSFERS):
        tables.write(table, table.empty(), run / f"{table.name}.parquet")
    write_flushes(run / KERNEL_EVENTS, flushes)
    facts = json.loads((run / "run.json").read_text())
    finished = {"experiment_id": "traced", "status": "complete", "time_source": "measured"}
    traced = tracing((0, 0), (SECOND, SECOND)).as_written() | {"events": 100}
    write_run(run, facts | finished | {"tracing": traced, "files": file_records(run)})
    return run


def faults(run: Path) -> list[str]:
    """Complaints of check about such a run, except that it has no settings."""
    return [c for c in check_run(run) if "experiment.yaml" not in c]


def lossy() -> Found:
    flush = Batch([(40, 1)], step=3, layer=1).flush()
    flush["segments"]["dropped"][0] = 2
    return flush


def test_collect_keeps_the_verdict_of_every_oracle(tmp_path: Path) -> None:
    run = traced_run(tmp_path / "run", [lossy()])
    collect_run(run, tmp_path / "out")
    account = read_json(tmp_path / "out" / "collect.json")["kv_events"]
    assert set(account["oracles"]) == set(NAMES)
    assert account["oracles"]["events_dropped"] == {
        "violations": 2,
        "first": "repeat 0, step 3, layer 1: worker 0 dropped 2 events",
        "looked": 1,
    }
    assert account["rows"] == len(
        tables.read(tables.KV_EVENTS, tmp_path / "out" / "kv_events.parquet")
    )


def test_a_run_that_was_not_traced_gets_no_such_tables(tmp_path: Path) -> None:
    collect_run(RunDirectory(tmp_path).write(), tmp_path / "out")
    assert "kv_events" not in read_json(tmp_path / "out" / "collect.json")
    assert not list((tmp_path / "out").glob("kv_*"))


def test_a_violated_oracle_is_a_reason_not_to_believe_the_run(tmp_path: Path) -> None:
    run = traced_run(tmp_path / "run", [lossy()])
    with pytest.raises(BadInput, match="kvscope collect"):
        analyse(run, run)
    collect_run(run, run)
    reasons = analyse(run, run)["reasons"].iloc[0].split(";")
    assert set(reasons) & set(NAMES) == {"events_dropped"}


def test_check_looks_at_the_raw_events(tmp_path: Path) -> None:
    sound = traced_run(tmp_path / "sound", [Batch([(40, 1)]).flush()])
    assert faults(sound) == []
    run = traced_run(tmp_path / "run", [lossy()])
    assert faults(run) == [
        f"{run}: events_dropped, 2 (repeat 0, step 3, layer 1: worker 0 dropped 2 events)"
    ]
    (run / KERNEL_EVENTS).write_bytes(compressed([lossy()])[:-9])
    assert "the file was cut or changed" in check_run(run)[0]


def test_a_kernel_is_compared_with_its_layer_on_the_hosts_clock(tmp_path: Path) -> None:
    flush = Batch([(40, 1)], origin_ticks=SECOND + 500_000).flush()
    within = {"repeat": 0, "step": 0, "layer": 0, "start_s": 0.0005, "duration_s": 0.1}
    assert faults(traced_run(tmp_path / "within", [flush], layers=[within])) == []
    late = traced_run(tmp_path / "late", [flush], layers=[within | {"start_s": 0.1}])
    assert [c.split(", ")[0] for c in faults(late)] == [f"{late}: kernel_outside_layer"]


def test_a_gpus_kernels_are_compared_with_the_profilers(tmp_path: Path) -> None:
    """The profiler saw the same launches, on a clock of its own, a little longer or shorter."""
    path = tmp_path / "run"
    path.mkdir()
    flush = Batch([(40, 1)], gpu=True, origin_ticks=SECOND + 10_100_000).flush()
    offset_ns, process, thread = 123_456, global_id(100), global_id(100, 7)
    file = NsysFile(path / "trace.sqlite", capture_end=10 * SECOND)
    own = file.kvscope(thread)
    pushed = SECOND + SECOND // 100 - offset_ns  # steps.start_s + steps.schedule_s
    own("repeat", SECOND - offset_ns, 2 * SECOND - offset_ns, 0)
    own("forward pass", pushed, pushed + 10_000_000, 0)
    own("layer", pushed + 1000, pushed + 9_000_000, 0)
    for place, (name, early, late) in enumerate((("write", 3, 4), ("attention", -700, -200))):
        kernel = flush["kernels"][place]
        origin = flush["origin_ticks"] - offset_ns
        file.call(pushed + 2000 + place, pushed + 2100 + place, thread, place)
        file.kernel(
            origin + kernel["start_ticks"] - early,
            origin + kernel["end_ticks"] + late,
            process,
            place,
            name=f"kvscope_{name}_kernel",
        )
    file.close()
    steps = [{"repeat": 0, "step": 0, "start_s": 0.0, "schedule_s": 0.01, "duration_s": 0.1}]
    run = traced_run(path, [flush], profiler="nsys", steps=steps)
    collect_run(run, tmp_path / "out")
    kernels = tables.read(tables.KV_KERNELS, tmp_path / "out" / "kv_kernels.parquet")
    assert kernels["residual_ns"].tolist() == [0, 700]
    account = read_json(tmp_path / "out" / "collect.json")["kv_events"]
    assert account["residual_ns"] == 700
    assert "profiler" in account["residual_meaning"]


@pytest.mark.parametrize("gpu", [False, True])
def test_records_give_the_tables_that_columns_give(gpu: bool, tmp_path: Path):
    """Version 2 of a flush, and version 1 of earlier runs."""
    flushes = batches_of_a_run(gpu)
    result = {}
    for name, file in {"columns": flushes, "records": [*map(with_records, flushes)]}.items():
        (tmp_path / name).mkdir()
        result[name] = collected(file, tmp_path / name)
    for one, other in zip(*result.values(), strict=True):
        assert one.equals(other) if isinstance(one, pd.DataFrame) else one == other
    assert [with_columns(with_records(flush)) for flush in flushes] == flushes


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        (7, "records holds something else than a string"),
        ("%%%%", "records is damaged"),
        ("AAAAA", "records is damaged"),
        ("AAAA", "3 bytes are no records of 32"),
        ("A" * 128, "has 3 values"),  # 96 bytes
    ],
)
def test_damaged_records_are_refused_by_name(records: Any, wrong: str, tmp_path: Path):
    damaged = with_records(batches_of_a_run()[0]) | {"records": records}
    with pytest.raises(BadInput, match=wrong) as refused:
        [*read_flushes(write_flushes(tmp_path / KERNEL_EVENTS, [damaged]))]
    assert "line 1" in str(refused.value)
