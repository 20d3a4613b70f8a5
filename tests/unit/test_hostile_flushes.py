"""Raw KV events that are damaged or hostile: sound tables or one sentence, in little memory."""

import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import limits, tables
from kvscope.collect.kv.clock import EventClock
from kvscope.collect.kv.flushes import read_flushes
from kvscope.collect.kv.tables import write_kv_tables
from kvscope.collect.oracles.judge import Judge
from kvscope.collect.oracles.run_facts import RunFacts
from kvscope.errors import BadInput
from kvscope.runfile import KERNEL_EVENTS
from kvscope.runschema import VERSION, parse
from tests.run_records import facts_of

from .kv_flushes import Batch, compressed, tracing, write_flushes
from .mutations import altered, damaged, is_a_sentence, nested, shuffled
from .test_kv_events import batches_of_a_run, faults, traced_run

pytestmark = pytest.mark.thorough

SECOND = 1_000_000_000
FLUSHES = [*batches_of_a_run()[:3], Batch([(20, 5), (0, 3)], gpu=True, step=7).flush()]
TEXT = "".join(json.dumps(flush) + "\n" for flush in FLUSHES)


def sound_or_refused(content: bytes) -> int | None:
    """Collect a raw file: how many events its table has, or None where the file was refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / KERNEL_EVENTS
        path.write_bytes(content)
        clock = EventClock.of_run(tracing((0, 0), (SECOND, SECOND)), Path("run.json"))
        try:
            account = write_kv_tables(path, path.parent / "out", Judge(RunFacts(clock)))
        except BadInput as refusal:
            is_a_sentence(refusal, path)
            return None
        events = pq.read_table(path.parent / "out" / "kv_events.parquet")
        events.validate(full=True)
        assert len(events) == account["rows"]
        assert all(verdict["violations"] >= 0 for verdict in account["oracles"].values())
        rising = np.all(np.less_equal(events["start_ns"], events["end_ns"]))
        assert rising or account["oracles"]["event_outside_kernel"]["violations"]
        tables.read(tables.KV_KERNELS, path.parent / "out" / "kv_kernels.parquet")
        return account["rows"]


@given(damaged(zstandard.compress(TEXT.encode())))
@settings(deadline=None)
def test_a_damaged_file(content: bytes) -> None:
    sound_or_refused(content)


@given(damaged(TEXT.encode()))
@settings(deadline=None)
def test_damaged_text(content: bytes) -> None:
    sound_or_refused(zstandard.compress(content))


@given(shuffled(TEXT.splitlines()))
def test_lines_in_another_order(lines: list[str]) -> None:
    sound_or_refused(zstandard.compress(("\n".join(lines) + "\n").encode()))


@pytest.mark.slow
@given(st.sampled_from(FLUSHES).flatmap(altered))
def test_other_values(flush: Any) -> None:
    sound_or_refused(compressed([flush]))


def refusal(tmp_path: Path, *flushes: Any) -> str:
    path = write_flushes(tmp_path / KERNEL_EVENTS, [*flushes])
    with pytest.raises(BadInput) as caught:
        list(read_flushes(path))
    is_a_sentence(caught.value, path)
    return str(caught.value)


def broken_by(**changes: Any) -> dict[str, Any]:
    return Batch([(20, 1)]).flush() | changes


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (broken_by(context_tokens=[2**62]), "context_tokens"),
        (broken_by(context_tokens=[2**31 - 1], block_size=1), "reads"),
        (broken_by(scheduled_tokens=[2**30]), "tokens"),
        (broken_by(tile_tokens=2**40), "tile_tokens is 1099511627776"),
        (broken_by(block_size=16.0), "block_size is 16.0"),
        (broken_by(layer=2**31), "layer is 2147483648"),
        (broken_by(step=-1), "step is -1"),
        (broken_by(origin_ticks=2**70), "origin_ticks is"),
        (broken_by(kv_heads=[2**40]), "kv_heads"),
        (broken_by(kv_heads=[0, 0]), "kv_heads"),
        (broken_by(requests=[7]), "requests"),
        (broken_by(requests=["x" * 10_000]), "requests"),
        (broken_by(phase="asleep"), "phase is 'asleep'"),
        (broken_by(block_table=[[2**40]]), "block_table"),
        (broken_by(kernels=[{"kernel": "sort", "start_ticks": 0, "end_ticks": 1}]), "sort"),
        (broken_by(kernels=broken_by()["kernels"] * 2), "kernels has 4"),
    ],
)
def test_numbers_that_no_batch_has_are_refused_by_name(
    tmp_path: Path, found: Any, wrong: str
) -> None:
    assert wrong in refusal(tmp_path, Batch([(20, 1)]).flush(), found)


@pytest.mark.parametrize("values", [99_999_999_999, 1.5, "12", None, [[0]], [0.5], ["0"], [2**64]])
@pytest.mark.parametrize("name", ["kind", "start_ticks"])
def test_what_is_no_list_of_whole_numbers_is_refused(
    tmp_path: Path, name: str, values: Any
) -> None:
    found = broken_by()
    found["events"][name] = values
    assert f"events.{name}" in refusal(tmp_path, found)


@pytest.mark.parametrize("counts", [[2**63 - 1, 2**63 - 1, 2, 0], [-1, 1, 0, 0]])
def test_counts_of_segments_that_only_add_up_by_overflow(tmp_path: Path, counts: Any) -> None:
    found = broken_by()
    events = sum(found["segments"]["events"])
    found["segments"]["events"] = [*counts[:3], counts[3] + events]
    assert "segments.events" in refusal(tmp_path, found)


@pytest.mark.parametrize(
    ("name", "value"), [("block", 2**40), ("tokens", -(2**31) - 1), ("start_ticks", 2**63 - 1)]
)
def test_a_record_that_no_event_has_is_left_out_and_counted(
    tmp_path: Path, name: str, value: int
) -> None:
    """As where a kernel left memory unwritten: its run is not valid, and the others are there."""
    found = broken_by()
    found["events"][name][1] = value
    (flush,) = read_flushes(write_flushes(tmp_path / KERNEL_EVENTS, [found]))
    assert flush.unreadable == 1
    assert len(flush) == len(found["events"]["kind"]) - 1
    (complaint,) = [c for c in faults(traced_run(tmp_path / "run", [found])) if "records_" in c]
    assert "1 records are not events" in complaint


def test_check_refuses_a_batch_that_no_engine_has(tmp_path: Path) -> None:
    absurd = broken_by(context_tokens=[2**40])
    assert "line 1" in faults(traced_run(tmp_path / "run", [absurd]))[0]


def test_times_that_the_clock_does_not_reach_are_refused(tmp_path: Path) -> None:
    run = traced_run(tmp_path / "run", [broken_by(origin_ticks=2**63 - 1)])
    (complaint,) = faults(run)
    assert "tracing.clock" in complaint


@pytest.mark.parametrize("filling", [b"\x00", b"[", b" "])
def test_a_file_that_grows_without_end_is_refused_in_little_memory(
    tmp_path: Path, filling: bytes
) -> None:
    path = tmp_path / KERNEL_EVENTS
    with (
        path.open("wb") as file,
        zstandard.ZstdCompressor().stream_writer(file, closefd=False) as stream,
    ):
        for _ in range(1024):
            stream.write(filling * (1 << 20))
    assert path.stat().st_size < 1 << 18
    tracemalloc.start()
    with pytest.raises(BadInput, match=f"{KERNEL_EVENTS}: .*times"):
        list(read_flushes(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 28


def test_a_line_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONGEST_FLUSH_BYTES", 500)
    found = Batch([(20, 1)]).flush()
    path = write_flushes(tmp_path / KERNEL_EVENTS, [found])
    with pytest.raises(BadInput, match=f"{KERNEL_EVENTS}: line 1 is longer than 500 bytes"):
        list(read_flushes(path))


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / KERNEL_EVENTS
    path.write_bytes(zstandard.compress(nested(200_000).encode() + b"\n"))
    with pytest.raises(BadInput, match="line 1 is not a flush"):
        list(read_flushes(path))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a regular file"):
        list(read_flushes(tmp_path))


CLOCK = tracing((0, 0), (SECOND, SECOND), (2 * SECOND, 2 * SECOND))


@given(altered(facts_of(schema=VERSION, tracing=CLOCK.as_written())))
@settings(deadline=None)
def test_any_clock_gives_times_or_is_refused(facts: Any) -> None:
    try:
        clock = EventClock.of_run(parse(facts, Path("run.json")).tracing, Path("run.json"))
        found = clock.ns(np.array([0, 5, SECOND]), 0)
    except BadInput as refusal:
        is_a_sentence(refusal, Path("run.json"))
    else:
        assert np.all(np.diff(found) >= 0)
