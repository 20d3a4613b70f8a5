"""The collect stage: the tables of a run directory, or of an Nsight Systems export alone."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from kvscope.base.errors import BadInput
from kvscope.base.ranges import DOMAIN, FORWARD_PASS
from kvscope.collect.host_times import require_times
from kvscope.collect.nsys import emptiness
from kvscope.collect.nsys.tables import write_empty_tables, write_nsys_tables
from kvscope.collect.timeline.alignment import Alignment, align
from kvscope.collect.timeline.intervals import write_timeline
from kvscope.collect.timeline.perfetto import write_perfetto
from kvscope.collect.traces import TraceReader, reader_of
from kvscope.tables import NVTX_RANGES, TIMELINE, accounts
from kvscope.tables.accounts import COLLECTED
from kvscope.tables.results import Run
from kvscope.tables.runfile import (
    KERNEL_EVENTS,
    NSYS_EXPORT,
    PERFETTO,
    require_unchanged,
)


def collect_nsys(sqlite: Path, out_dir: Path) -> dict[str, Any]:
    """Write an export's tables and `collect.json` into `out_dir`; return the latter's content.

    Raises BadInput if the file is missing, damaged, or not an Nsight Systems export.
    """
    accounts.begin(out_dir, COLLECTED)
    account = write_nsys_tables(sqlite, out_dir) | {"alignment": None}
    accounts.write(out_dir, COLLECTED, None, account)
    return account


def collect_run(run_dir: Path, out_dir: Path, perfetto: bool = False) -> None:
    """Write a run's tables, timeline and `collect.json`, and optionally a Perfetto trace.

    Without an export, the profiler's tables are empty and the timeline has host rows only. Raises
    BadInput if a record of the run is missing, damaged or changed.
    """
    run = Run(run_dir)
    require_times(run)
    require_unchanged(run_dir, run.record, NSYS_EXPORT, KERNEL_EVENTS)
    reader = _reader_of_events(run)
    accounts.begin(out_dir, COLLECTED)
    account, alignment = _collect_profile(run, out_dir)
    offset_ns = alignment.offset_ns if alignment else None
    if reader:
        account["kv_events"] = reader.collect(run, out_dir, offset_ns)
    account["rows"][TIMELINE.name] = write_timeline(run, out_dir, offset_ns)
    if perfetto:
        accesses = reader.slices(out_dir) if reader else None
        if accesses and accesses.warning:
            account["warnings"].append(accesses.warning)
        write_perfetto(out_dir / TIMELINE.file, run, out_dir / PERFETTO, accesses)
    accounts.write(out_dir, COLLECTED, run_dir, account)


def _collect_profile(run: Run, out_dir: Path) -> tuple[dict[str, Any], Alignment | None]:
    """Write the profiler's tables; return their account and the clock's alignment, if any."""
    export, record = run.directory / NSYS_EXPORT, run.record
    used = record.profiler and record.profiler.used
    left_out = record.recorded and used == "none"  # it does not fit the recording
    if not export.exists() or left_out:
        account = write_empty_tables(out_dir) | {"alignment": None}
        if used == "nsys":
            account["warnings"].append(f"The run was profiled, but {NSYS_EXPORT} is not there.")
        return account, None
    cuda_by = emptiness.RECORD_CUDA if record.recorded else emptiness.RUN_CUDA
    account = write_nsys_tables(export, out_dir, cuda_by)
    alignment = align(run, _passes(out_dir), account["capture_start_utc_ns"])
    if alignment is None:
        account["warnings"].append(
            "The profiler's clock could not be aligned with the host's: the timeline has no "
            "profiler rows."
        )
        return account | {"alignment": None}, None
    account["warnings"] += alignment.warnings()
    return account | {"alignment": alignment.to_json()}, alignment


def _passes(out_dir: Path) -> pd.DataFrame:
    """The NVTX ranges of the measured forward passes: repeat, step, start_ns."""
    filters = [("domain", "=", DOMAIN), ("name", "=", FORWARD_PASS), ("kind", "=", "push_pop")]
    columns = ["repeat", "step", "start_ns"]
    texts = [name for name, *_ in filters]  # millions of ranges share few of them
    path = out_dir / NVTX_RANGES.file
    rows = pq.read_table(path, columns=columns, filters=filters, read_dictionary=texts)
    frame: pd.DataFrame = rows.drop_null().to_pandas()
    return frame


def _reader_of_events(run: Run) -> TraceReader | None:
    """The reader of the run's KV events; None without any.

    BadInput if the run is complete and they are missing, or if nothing here reads them.
    """
    path = run.directory / KERNEL_EVENTS
    traced = run.record.tracing is not None
    if traced and run.record.complete and not path.exists():
        raise BadInput(f"{path}: no such file, though KV events were traced")
    return reader_of(run) if traced and path.exists() else None
