"""Files of traced runs that are damaged or hostile: read as sound values, or refused."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kv_events import batches_of_a_run

from kvscope import tables
from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.plan import experiment
from kvscope.tables import runfile, runschema
from kvscope.tables.runfile import KERNEL_EVENTS
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import read_flushes
from kvscope_kernels.collect.tables import write_kv_tables
from kvscope_kernels.oracles.judge import Judge
from kvscope_kernels.oracles.run_facts import RunFacts
from tests.run_records import facts_of
from tests.unit.kv_flushes import Batch, compressed, tracing
from tests.unit.mutations import (
    NO_FILES,
    FileKind,
    altered_json,
    altered_lines,
    damaged,
    json_lines,
    nested,
)
from tests.unit.test_damaged_files import planned, read_experiment

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SECOND = 1_000_000_000
SAMPLED = planned("overflow=swap", "tracing=sampled")
READINGS = tracing((0, 0), (SECOND, SECOND), (2 * SECOND, 2 * SECOND))
CLOCK = facts_of(schema=runschema.VERSION, tracing=READINGS.as_written())


def far_clock() -> dict[str, Any]:
    """A record whose clock was read ages apart."""
    return CLOCK | {"tracing": tracing((0, 0), (10**19, 1)).as_written()}


def read_clock(path: Path) -> None:
    result = EventClock.of_run(runfile.parse(read_json(path), path).tracing, path).ns(
        np.array([0, 5, SECOND]), 0
    )
    assert np.all(np.diff(result) >= 0)


FLUSHES = [*batches_of_a_run()[:3], Batch([(20, 5), (0, 3)], gpu=True, step=7).flush()]
TEXT = json_lines(FLUSHES)


def read_events(path: Path) -> None:
    clock = EventClock.of_run(tracing((0, 0), (SECOND, SECOND)), path)
    out = path.parent / "out"
    account = write_kv_tables(path, out, Judge(RunFacts(clock)))
    events = pq.read_table(out / "kv_events.parquet")
    events.validate(full=True)
    assert len(events) == account["rows"]
    assert all(verdict["violations"] >= 0 for verdict in account["oracles"].values())
    rising = np.all(np.less_equal(events["start_ns"], events["end_ns"]))
    assert rising or account["oracles"]["event_outside_kernel"]["violations"]
    tables.read(tables.KV_KERNELS, out / "kv_kernels.parquet")


def flush(**changes: Any) -> bytes:
    """A sound flush, and one with these changes."""
    return compressed([Batch([(20, 1)]).flush(), Batch([(20, 1)]).flush() | changes])


TWO = {"context_tokens": [0, 0], "scheduled_tokens": [1, 1], "block_table": [[0], [1]]}
TWO["phases"] = ["decode", "decode"]


def events(**changes: Any) -> bytes:
    sound = Batch([(20, 1)]).flush()
    return flush(events=sound["events"] | changes)


def segments(*counts: int) -> bytes:
    sound = Batch([(20, 1)]).flush()
    total = sum(sound["segments"]["events"])
    return flush(segments=sound["segments"] | {"events": [*counts[:3], counts[3] + total]})


KINDS = {
    kind.name: kind
    for kind in (
        FileKind(
            "clock.json",
            json.dumps(CLOCK).encode(),
            read_clock,
            (altered_json(CLOCK),),
        ),
        FileKind(
            "experiment.yaml",
            experiment.dump(SAMPLED).encode(),
            read_experiment,
            (altered_json(SAMPLED.to_dict()),),
        ),
        FileKind(
            KERNEL_EVENTS,
            zstandard.compress(TEXT),
            read_events,
            (
                damaged(TEXT).map(zstandard.compress),
                altered_lines(FLUSHES).map(zstandard.compress),
            ),
        ),
    )
}
REFUSED = [
    ("clock.json", json.dumps(far_clock()).encode(), "tracing.clock.samples reach"),
    (KERNEL_EVENTS, flush(requests=["7", "7"], **TWO), "requests has one twice"),
    (KERNEL_EVENTS, zstandard.compress(TEXT[:-1]), "the last line has no end; the file was cut"),
    (KERNEL_EVENTS, zstandard.compress(TEXT)[:-20], "the file was cut"),
    (KERNEL_EVENTS, flush(context_tokens=[2**62]), "context_tokens"),
    (KERNEL_EVENTS, flush(context_tokens=[2**31 - 1], block_size=1), "reads"),
    (KERNEL_EVENTS, flush(scheduled_tokens=[2**30]), "tokens"),
    (KERNEL_EVENTS, flush(tile_tokens=2**40), "tile_tokens is 1099511627776"),
    (KERNEL_EVENTS, flush(block_size=16.0), "block_size is 16.0"),
    (KERNEL_EVENTS, flush(layer=2**31), "layer is 2147483648"),
    (KERNEL_EVENTS, flush(step=-1), "step is -1"),
    (KERNEL_EVENTS, flush(origin_ticks=2**70), "origin_ticks is"),
    (KERNEL_EVENTS, flush(origin_ticks=2**63 - 1), "tracing.clock has no reading"),
    (KERNEL_EVENTS, flush(kv_heads=[2**40]), "kv_heads"),
    (KERNEL_EVENTS, flush(kv_heads=[0, 0]), "kv_heads"),
    (KERNEL_EVENTS, flush(requests=[7]), "requests"),
    (KERNEL_EVENTS, flush(requests=["x" * 10_000]), "requests"),
    (KERNEL_EVENTS, flush(block_table=[[2**40]]), "block_table"),
    (KERNEL_EVENTS, flush(kernels=[{"kernel": "sort", "start_ticks": 0, "end_ticks": 1}]), "sort"),
    (KERNEL_EVENTS, flush(kernels=Batch([(20, 1)]).flush()["kernels"] * 2), "kernels has 4"),
    *[
        (KERNEL_EVENTS, events(**{name: values}), f"events.{name}")
        for name in ("kind", "start_ticks")
        for values in (99_999_999_999, [0.5], ["0"], [2**64])
    ],
    (KERNEL_EVENTS, segments(2**63 - 1, 2**63 - 1, 2, 0), "segments.events"),
    (KERNEL_EVENTS, segments(-1, 1, 0, 0), "segments.events"),
    (KERNEL_EVENTS, zstandard.compress(nested(200_000).encode() + b"\n"), "line 1 is not a flush"),
]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@given(data=st.data())
@settings(max_examples=40)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(
    kind: FileKind, data: st.DataObject
) -> None:
    kind.refusal(data.draw(kind.contents))


@pytest.mark.parametrize(("name", "content", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_a_file_is_refused_by_name_and_reason(name: str, content: bytes, words: str) -> None:
    assert words in (KINDS[name].refusal(content) or "")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_sound_file_is_read_also_by_a_link(kind: FileKind, tmp_path: Path) -> None:
    assert kind.refusal(kind.sound) is None
    assert kind.refusal_by_a_link(tmp_path) is None


@pytest.mark.timeout(60)  # opening a named pipe waits for a writer
@pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_path_that_is_no_file_is_refused(
    kind: FileKind, make: Callable[[Path], Any], tmp_path: Path
) -> None:
    assert kind.refusal_of_no_file(make, tmp_path)


def test_a_line_that_grows_without_end_is_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONGEST_FLUSH_BYTES", 1 << 20)
    path = tmp_path / KERNEL_EVENTS
    path.write_bytes(zstandard.compress(bytes(1 << 29)))
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    with pytest.raises(BadInput, match=f"{KERNEL_EVENTS}: line 1 is longer than 1,048,576 bytes"):
        list(read_flushes(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 28
