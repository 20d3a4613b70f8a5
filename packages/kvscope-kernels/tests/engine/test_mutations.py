"""Faults put into the kernels, the buffers and the clock: each is caught, by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pandas as pd
import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kernel_batches import Case, Shape
from numba_interpreted import Fault, kernels, ticks

from kvscope.plan.grid import expand
from kvscope.tables.runschema import TracingRecord
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import parse_flush
from kvscope_kernels.engine.cpu.buffer import USED
from kvscope_kernels.engine.cpu.tracer import CpuTracer
from kvscope_kernels.engine.kernel_events import OPTIONS, KernelEvents
from kvscope_kernels.engine.spool import Spool
from kvscope_kernels.engine.tracer import TracedPass
from kvscope_kernels.kv_events import ATTENTION, RECORD, WRITE
from kvscope_kernels.oracles.judge import Judge
from kvscope_kernels.oracles.run_facts import LayerTimes, RunFacts, Schedule
from tests.engine.conftest import ROOT

pytestmark = pytest.mark.engine

PASSES = (
    [(0, 21), (0, 9)],
    [(21, 1), (9, 1)],
    [(22, 1), (10, 1), (16, 5)],
    [(23, 1), (11, 1)],
)
SHAPE = Shape([], block_size=8, kv_heads=2, group=1, head_size=8, tile=16)
LAYERS = 2


def traced(directory: Path, faults: tuple[Fault, ...] = (), buffer_events: int = 1 << 16) -> Judge:
    """Run some passes of two layers with faulty kernels, and hold the oracles against them."""
    settings = ["tracing=full", f"tracing.buffer_events={buffer_events}", "model=tiny-llama"]
    chosen = expand(None, settings, ROOT / "config").experiments[0].experiment
    small = {"layers": LAYERS, "kv_heads": SHAPE.kv_heads, "attention_heads": SHAPE.kv_heads}
    chosen = chosen.model_copy(update={"model": chosen.model.model_copy(update=small)})
    tracer = CpuTracer(chosen, None, directory, 1)  # type: ignore[arg-type]
    mutant, intervals = kernels(*faults), {}
    cases = [Case(replace(SHAPE, rows=rows), seed) for seed, rows in enumerate(PASSES)]
    for step, case in enumerate(cases):
        tracer.begin_pass(step)
        tracer.open_pass(SHAPE.tile, len(case.cut.pieces), case.cut.reads)
        for layer in range(LAYERS):
            began = int(ticks())
            one_layer(case, mutant, tracer, layer)
            intervals[0, step, layer] = (began, int(ticks()))
        tracer.end_pass()
    events = KernelEvents(chosen, tracer, directory)
    known = RunFacts(
        EventClock.of_run(tracing(), Path("run.json")),
        LayerTimes(intervals),
        traced_layers=list(range(LAYERS)),
        passes=frozenset((0, step) for step in range(len(PASSES))),
        schedule=Schedule(scheduled(cases)),
    )
    judge = Judge(known)
    tracer.finish()
    for traced_pass in tracer.passes:
        batch = batch_of(cases[traced_pass.step], traced_pass.step)
        for flush in events.flushes(tracer, traced_pass, batch):
            judge.add(parse_flush(orjson.dumps(flush, option=OPTIONS), Path("events"), 1))
    tracer.close()
    return judge


def one_layer(case: Case, mutant: Any, tracer: CpuTracer, layer: int) -> None:
    """Write and attend, as the backend does."""
    cache, into = case.fresh_cache(), tracer.segments(layer)
    for kernel, run in ((WRITE, case.write), (ATTENTION, case.attend)):
        start = int(ticks())
        run(cache, into, mutant)
        tracer.note(layer, kernel, start, int(ticks()))


def tracing() -> TracingRecord:
    """The part of run.json about tracing, with a clock whose ticks are ns already."""
    readings = [{"ticks": t, "host_ns": t, "uncertainty_ns": 1000} for t in (0, int(ticks()))]
    clock = {"name": "ns", "ns_per_tick": 1.0, "samples": readings}
    return TracingRecord.model_validate({"name": "full", "clock": clock})


def batch_of(case: Case, step: int) -> dict[str, Any]:
    """A batch as the scheduler knows it."""
    rows, size = case.shape.rows, case.shape.block_size
    decodes = {bool(context) and new == 1 for context, new in rows}
    return {
        "repeat": 0,
        "step": step,
        "block_size": size,
        "phase": "mixed" if len(decodes) > 1 else "decode" if decodes.pop() else "prefill",
        "requests": [str(row) for row in range(len(rows))],
        "phases": ["decode" if context and new == 1 else "prefill" for context, new in rows],
        "context_tokens": [context for context, _ in rows],
        "scheduled_tokens": [new for _, new in rows],
        "block_table": [
            case.table[row, : -(-(context + new) // size)].tolist()
            for row, (context, new) in enumerate(rows)
        ],
    }


def scheduled(cases: list[Case]) -> pd.DataFrame:
    """The `batch` table of the passes."""
    rows = [
        (0, step, str(row), "decode" if context and new == 1 else "prefill", context, new)
        for step, case in enumerate(cases)
        for row, (context, new) in enumerate(case.shape.rows)
    ]
    names = ["repeat", "step", "request_id", "phase", "context_tokens", "scheduled_tokens"]
    return pd.DataFrame(rows, columns=names)


def violated(judge: Judge) -> set[str]:
    return {name for name, found in judge.account().items() if found["violations"]}


def test_without_a_fault_nothing_is_found(tmp_path: Path):
    assert violated(traced(tmp_path)) == set()


LOGGED = "if events is not None and traced:\n                log(events, counters, layer, "
LAST_SLOT = "min(place + 1, events.shape[1] - 1)"
KERNEL_FAULTS: dict[str, tuple[str, list[Fault]]] = {
    "lost V reads": (
        "v_reads_missing",
        [(f"{LOGGED}V_READ", f"{LOGGED}V_READ".replace("traced:", "traced and b % 3 != 1:"))],
    ),
    "lost K reads of a head": (
        "k_reads_missing",
        [(f"{LOGGED}K_READ", f"{LOGGED}K_READ".replace("traced:", "traced and h != 1:"))],
    ),
    "records written over others": (
        "k_reads_missing",
        [("USED] = place + 1", "USED] = place + (place % 5 != 3)")],
    ),
    "records written with a wrong stride": (
        "tokens_not_written",
        [
            (
                f"events[thread, place, {word}]",
                f"events[thread, place * 3 % events.shape[1], {word}]",
            )
            for word in range(4)
        ],
    ),
    "one head only": (
        "heads_missing",
        [("traced = h % head_stride == 0", "traced = h == 0")],
    ),
    "durations in too large a unit": (
        "clock_factor_wrong",
        [("duration = min(ticks() - start", "duration = min((ticks() - start) // np.uint64(7)")],
    ),
    "durations in too small a unit": (
        "events_overlap",
        [("duration = min(ticks() - start", "duration = min((ticks() - start) * np.uint64(7)")],
    ),
    "the last block left out": (
        "k_reads_missing",
        [("(end + block_size - 1) // block_size", "max(1, end // block_size)")],
    ),
    "a token left out of the last block": (
        "tokens_misread",
        [("block, b, 0, tokens, start", "block, b, 0, tokens - (b == blocks - 1), start")],
    ),
    "K and V swapped": (
        "v_read_before_k",
        [
            ("layer, K_READ, row", "layer, NEITHER, row"),
            ("layer, V_READ, row", "layer, K_READ, row"),
            ("layer, NEITHER, row", "layer, V_READ, row"),
        ],
    ),
    "the block beside": (
        "block_not_in_table",
        [("K_READ, row, h, block, b,", "K_READ, row, h, block + 1, b,")],
    ),
    "the layer beside": (
        "layer_wrong",
        [("np.uint64(layer) <<", "np.uint64(layer + 1) <<")],
    ),
    "positions counted from one": (
        "v_reads_missing",
        [("V_READ, row, h, block, b,", "V_READ, row, h, block, b + 1,")],
    ),
    "V not written": (
        "tokens_not_written",
        [("for is_value in range(2)", "for is_value in range(1)")],
    ),
    "K and V swapped in writes": (
        "write_malformed",
        [("K_WRITE + is_value, row", "K_WRITE + 1 - is_value, row")],
    ),
    "writes of one head": (
        "write_malformed",
        [("row, RECORD_ALL_HEADS, block", "row, 0, block")],
    ),
    "K stamped after it was read": (
        "clock_factor_wrong",
        [(f"{LOGGED}K_READ", f"start = ticks()\n            {LOGGED}K_READ")],
    ),
    "writes one slot off": (
        "tokens_written_twice",
        [("offset, count, start,\n", "offset + 1, count, start,\n")],
    ),
    "each event twice": (
        "reads_repeated",
        [
            (
                "        counters[thread, USED] = place + 1\n",
                f"        events[thread, {LAST_SLOT}] = events[thread, place]\n"
                "        counters[thread, USED] = place + 2\n",
            )
        ],
    ),
    "requests mixed up": (
        "block_not_in_table",
        [("K_READ, row, h", "K_READ, row ^ 1, h")],
    ),
    "starts from another clock": (
        "event_outside_kernel",
        [
            (
                "    thread = get_thread_id()",
                "    start += np.uint64(10**9)\n    thread = get_thread_id()",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_a_fault_in_a_kernel_is_caught(name: str, tmp_path: Path):
    expected, faults = KERNEL_FAULTS[name]
    assert expected in violated(traced(tmp_path, tuple(faults)))


@contextmanager
def stale_slots() -> Iterator[None]:
    """A reader that takes what earlier passes left in the buffer for a pass's own."""
    original = CpuTracer.events

    def events(self: CpuTracer, traced: TracedPass) -> Any:
        earlier = traced.launches[0].before[:, USED] * RECORD.itemsize
        return original(self, replace(traced, begins=traced.begins - earlier))

    with mock.patch.object(CpuTracer, "events", events):
        yield


@contextmanager
def wrong_place() -> Iterator[None]:
    """The file read one record beside where the pass begins."""
    original = Spool.read

    def read(self: Spool, begin: int, kind: Any, count: int) -> Any:
        return original(self, max(begin - kind.itemsize, 0), kind, count)

    with mock.patch.object(Spool, "read", read):
        yield


@contextmanager
def half_a_record() -> Iterator[None]:
    """A reader that takes records for 16 bytes longer than they are."""
    original = Spool.read

    def read(*given: Any) -> Any:
        result = original(*given)
        return np.roll(result.view(np.uint64), 2).view(result.dtype)

    with mock.patch.object(Spool, "read", read):
        yield


@contextmanager
def wrong_rate() -> Iterator[None]:
    """A clock taken for six times slower than it is."""
    original = tracing

    def slow() -> TracingRecord:
        result = original().as_written()
        for sample in result["clock"]["samples"]:
            sample["ticks"] //= 6
        return TracingRecord.model_validate(result)

    with mock.patch(f"{__name__}.tracing", slow):
        yield


@contextmanager
def lost_pass() -> Iterator[None]:
    """A pass whose buffer is given away before it is noted."""
    original = CpuTracer.end_pass

    def end_pass(self: CpuTracer) -> None:
        original(self)
        if len(self.passes) == 2:
            del self.passes[1]

    with mock.patch.object(CpuTracer, "end_pass", end_pass):
        yield


@contextmanager
def requests_permuted() -> Iterator[None]:
    """A writer that has the requests of a batch in another order than their rows."""
    original = batch_of

    def batch(case: Case, step: int) -> dict[str, Any]:
        result = original(case, step)
        return result | {"requests": result["requests"][::-1]}

    with mock.patch(f"{__name__}.batch_of", batch):
        yield


@contextmanager
def kernels_mixed_up() -> Iterator[None]:
    """Tables of a writer that confuses the two kernels."""
    original = CpuTracer.note

    def note(self: CpuTracer, layer: int, kernel: str, *instants: int) -> None:
        original(self, layer, ATTENTION if kernel == WRITE else WRITE, *instants)

    with mock.patch.object(CpuTracer, "note", note):
        yield


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (stale_slots, "event_outside_kernel"),
        (wrong_place, "v_reads_missing"),
        (lost_pass, "passes_missing"),
        (requests_permuted, "batch_differs"),
        (kernels_mixed_up, "event_of_other_kernel"),
        (half_a_record, "records_unreadable"),
        (wrong_rate, "kernel_outside_layer"),
    ],
)
def test_a_fault_around_the_kernels_is_caught(fault: Any, expected: str, tmp_path: Path):
    with fault():
        assert expected in violated(traced(tmp_path))


def test_a_buffer_that_is_too_small_drops_and_says_so(tmp_path: Path):
    assert violated(traced(tmp_path, buffer_events=20)) == {"events_dropped"}


def test_a_segment_that_is_lost_is_missed(tmp_path: Path):
    original = CpuTracer.events
    lose = mock.patch.object(CpuTracer, "events", lambda *given: [original(*given)[0][:0]])
    with lose:
        assert {"k_reads_missing", "tokens_not_written"} <= violated(traced(tmp_path))
