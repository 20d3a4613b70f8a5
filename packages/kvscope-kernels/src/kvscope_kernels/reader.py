"""Reads the KV events of a run: its tables, what its oracles find, and slices of a trace."""

from pathlib import Path
from typing import Any, ClassVar

from kvscope.api.oracles import oracle
from kvscope.api.runs import RunData, traces
from kvscope.api.tables import runfile, tables
from kvscope_kernels.collect.access_slices import FirstAccesses, read_accesses
from kvscope_kernels.collect.flushes import read_flushes
from kvscope_kernels.collect.launches import Launches
from kvscope_kernels.collect.tables import write_kv_tables
from kvscope_kernels.oracles.judge import Judge, judge_flushes
from kvscope_kernels.oracles.registry import ALL_ORACLES


class KvEventsReader(traces.TraceReader):
    """Reads kernel_events.jsonl.zst."""

    oracles: ClassVar[tuple[oracle.Oracle[Any], ...]] = ALL_ORACLES

    def collect(self, run: RunData, out_dir: Path, offset_ns: int | None) -> dict[str, Any]:
        """Write kv_events and kv_kernels; residuals refer to the profiler's kernels, if any."""
        launches = None if offset_ns is None else Launches.read(out_dir, offset_ns)
        expected = run.record.tracing.events if run.record.tracing else 0
        events = run.directory / runfile.KERNEL_EVENTS
        return write_kv_tables(events, out_dir, Judge.of_run(run), launches, expected)

    def judge(self, run: RunData) -> traces.Account:
        """Judge the raw file by every oracle."""
        flushes = read_flushes(run.directory / runfile.KERNEL_EVENTS)
        return judge_flushes(flushes, Judge.of_run(run))

    def slices(self, directory: Path) -> FirstAccesses:
        """The accesses of the first passes."""
        return read_accesses(directory / tables.KV_EVENTS.file)


READER = KvEventsReader()
