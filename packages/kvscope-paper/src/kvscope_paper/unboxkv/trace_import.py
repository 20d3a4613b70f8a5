"""The artifact's kernel traces as a run's directory: flushes of KV events, and their faults.

From there on they go the way of our own: kv_events, kv_kernels, oracles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

from kvscope.api.collecting import collect_run, importer
from kvscope.api.errors import BadInput
from kvscope.api.files import files, layout
from kvscope.api.tables import runfile
from kvscope.api.words import quantities
from kvscope_kernels import kv_events
from kvscope_paper.unboxkv.trace_flushes import (
    CYCLES_PER_TICK,
    FASTEST_MHZ,
    NS_PER_TICK,
    make_flushes,
)
from kvscope_paper.unboxkv.trace_json import DURATION_KEY, KernelTraces, Record, read_records

KIND = "unboxkv-trace"
FAULTS = (
    f"the unit of time is not known: values are clock64 cycles divided by {CYCLES_PER_TICK}, as if "
    f"the GPU ran at {CYCLES_PER_TICK} MHz; start_ns and end_ns take it to have run at its "
    f"fastest, {FASTEST_MHZ} MHz ({NS_PER_TICK:.1f} ns a unit), and are too short if it did not",
    "nothing places the events on the host's clock: reads start relative to their own thread "
    "block, which began at an unknown time after the host's launch, where they are put here",
    "writes have a duration, shared by K and V of a token, and no start: they are put at the "
    "host's launch",
    "start and end of the kernels were not recorded: whether events lie within is not known",
    "heads and lanes overwrote one another in one slot: kv_head is null, what remains is of any "
    "head, and times of neighbouring events are of different thread blocks",
    "whether events were dropped was not counted: dropped_events is null; the buffer had room for "
    "10 requests of 80 blocks, and nothing checked its bounds",
    "blocks are byte addresses of a token's first element divided by the bytes of a block, which "
    "follow from how far the token's last element lies; of reads the block was recorded, but "
    "neither offset nor tokens: these are what the request's length demands",
    "a request's blocks are those that were written for it; where a write is not in the files, "
    "those of its K reads",
    "no request ids were published: requests are numbered by their row in the batch, which is "
    "taken to stay the same",
    "reads of prefill passes were not traced",
    "the published kernel indexes V slots differently: the trace was made by code that was not "
    "published",
    "hardware, settings, and host times of forward passes were not published with the trace: the "
    "tables workload, requests, steps, batch and preemptions are empty",
)
FAULT_OF_LENGTHS = (
    "no prefill pass is in the files: contexts are counted from the blocks of K reads, so that a "
    "missing K read at a request's end cannot be noticed"
)
FAULT_OF_BLOCK_SIZE = "no writes are in the files: the block size is taken to be {block_size}"


@dataclass
class Counts:
    """Events by kind, and the missing events of each kind by request."""

    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(kv_events.KINDS, 0))
    due_reads: int = 0
    missing: dict[str, dict[int, int]] = field(default_factory=lambda: {"K": {}, "V": {}})

    def add(self, flush: Record) -> None:
        """Count a flush in."""
        kind, row = (np.array(flush["events"][name], np.int64) for name in ("kind", "row"))
        for number, name in enumerate(kv_events.KINDS):
            self.events[name] += int((kind == number).sum())
        if all(kernel["kernel"] != kv_events.ATTENTION for kernel in flush["kernels"]):
            return
        size = flush["block_size"]
        for request, context in enumerate(flush["context_tokens"]):
            blocks = context // size + 1
            self.due_reads += blocks
            for name, number in (("K", kv_events.K_READ), ("V", kv_events.V_READ)):
                lost = blocks - int(((kind == number) & (row == request)).sum())
                if lost > 0:
                    counted = self.missing[name]
                    counted[request] = counted.get(request, 0) + lost

    def losses(self) -> list[str]:
        """Phrases on the missing events, one for each kind."""
        return [
            f"{name} reads missing: {sum(lost.values()):,} of {self.due_reads:,}, {_of(lost)}"
            for name, lost in self.missing.items()
            if lost
        ]

    def __str__(self) -> str:
        k_write, v_write = self.events["k_write"], self.events["v_write"]
        written = f"{k_write:,} writes (K and V each)"
        if v_write != k_write:
            written = f"{k_write:,} K and {v_write:,} V writes"
        k, v = self.events["k_read"], self.events["v_read"]
        counted = f"{written}, {k + v:,} reads: {k:,} K, {v:,} V"
        return "; ".join([counted, *(self.losses() or ["no read is missing"] * bool(k + v))])


def _of(lost: dict[int, int]) -> str:
    if len(lost) == 1:
        return f"all of request {next(iter(lost))}"
    return ", ".join(f"{count:,} of request {request}" for request, count in lost.items())


def import_trace(paths: Sequence[Path], out: Path, _: str | None = None) -> str:
    """Write published kernel traces as a run directory with its tables; return a summary.

    Raises BadInput if the files are no such traces.
    """
    trace = _read(paths)
    counts = Counts()
    facts = _facts(paths, trace)
    importer.write_tables(out, {})
    _write(make_flushes(trace), counts, out / runfile.KERNEL_EVENTS)
    facts["faults"] = [*counts.losses(), *facts["faults"]]
    facts[runfile.TRACING]["events"] = sum(counts.events.values())
    runfile.write_run(out, facts | {"files": runfile.file_records(out)})
    collect_run(out, layout.tables_directory(out))
    return str(counts)


def _write(records: Iterator[Record], counts: Counts, path: Path) -> None:
    """Write flushes as a raw file, counting them on the way."""
    with (
        files.atomic_path(path) as temporary,
        temporary.open("wb") as file,
        zstandard.ZstdCompressor().stream_writer(file, closefd=False) as stream,
    ):
        for flush in records:
            counts.add(flush)
            stream.write(orjson.dumps(flush) + b"\n")


def _read(paths: Sequence[Path]) -> KernelTraces:
    """The records of the files together; BadInput names the files if they are not of one run."""
    writes, reads = read_records(paths)
    try:
        return KernelTraces.of(writes, reads)
    except BadInput as error:
        raise BadInput(f"{quantities.join_words([str(path) for path in paths])}: {error}") from None


def _facts(paths: Sequence[Path], trace: KernelTraces) -> dict[str, Any]:
    """The content of run.json, except counts that are known only after writing."""
    records = [*trace.writes.values(), *trace.reads.values()]
    span_s = max(record["start_time"] for record in records) - trace.began
    uncertainty_us = max(record[DURATION_KEY] for record in records)
    later = 10**9
    readings = [(0, 0), (later, round(later * NS_PER_TICK))]
    return {
        **importer.provenance(KIND, paths),
        "faults": _faults(trace),
        "clock": importer.imported_clock(span_s, round(trace.began * 1e9)),
        runfile.TRACING: {
            "name": "published",
            "layers": sorted({layer for _, layer in trace.passes}),
            "kv_heads": None,
            "clock": {
                "name": f"clock64/{CYCLES_PER_TICK}",
                "ns_per_tick": NS_PER_TICK,
                "samples": [
                    {"ticks": t, "host_ns": ns, "uncertainty_ns": round(uncertainty_us * 1e3)}
                    for t, ns in readings
                ],
            },
            "events": 0,
            "dropped_events": None,
        },
        "engine": {"block_size": trace.layout.block_size},
    }


def _faults(trace: KernelTraces) -> list[str]:
    faults = list(FAULTS)
    if trace.prompts is None:
        faults.append(FAULT_OF_LENGTHS)
    if not trace.writes:
        faults.append(FAULT_OF_BLOCK_SIZE.format(block_size=trace.layout.block_size))
    return faults


IMPORTER = importer.Importer(import_trace)
