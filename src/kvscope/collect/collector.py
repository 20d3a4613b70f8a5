"""The collect stage's two entries: a run directory, or an Nsight Systems export alone."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from kvscope import accounts
from kvscope.accounts import COLLECTED
from kvscope.collect.access_slices import read_accesses
from kvscope.collect.align import Alignment, align
from kvscope.collect.host import HostRecords
from kvscope.collect.judge import Judge
from kvscope.collect.kv_events import write_kv_tables
from kvscope.collect.launches import Launches
from kvscope.collect.merge import write_timeline
from kvscope.collect.nsys import write_empty_tables, write_nsys_tables
from kvscope.collect.perfetto import write_perfetto
from kvscope.collect.writing import table_path
from kvscope.errors import BadInput
from kvscope.ranges import DOMAIN, FORWARD_PASS
from kvscope.runfile import COMPLETE, KERNEL_EVENTS, PERFETTO, TRACING, require_unchanged
from kvscope.tables import (
    CUDA_API,
    GPU_KERNELS,
    GPU_MEMCPYS,
    KV_EVENTS,
    KV_KERNELS,
    NVTX_RANGES,
    TIMELINE,
)

TRACE = "trace.sqlite"
TABLES = (NVTX_RANGES, CUDA_API, GPU_KERNELS, GPU_MEMCPYS, KV_EVENTS, KV_KERNELS, TIMELINE)
# What collecting may write, beside its account.
FILES = (*(f"{table.name}.parquet" for table in TABLES), PERFETTO)


def collect_nsys(sqlite: Path, out_dir: Path) -> dict[str, Any]:
    """Write an export's tables and `collect.json` into `out_dir`; give what the latter holds.

    Raises BadInput, naming the file, if it is missing, damaged, or no export of Nsight Systems.
    """
    accounts.begin(out_dir, COLLECTED, FILES)
    account = write_nsys_tables(sqlite, out_dir) | {"alignment": None}
    accounts.write(out_dir, COLLECTED, None, FILES, account)
    return account


def collect_run(run_dir: Path, out_dir: Path, perfetto: bool = False) -> None:
    """Write a run's tables, timeline and `collect.json` into `out_dir`, a trace on demand.

    A run without an export gets empty profiler tables and a timeline of what the host recorded.
    Raises BadInput, naming the file, if a record of the run is missing, damaged or changed.
    """
    host = HostRecords.read(run_dir)
    sqlite = run_dir / TRACE
    require_unchanged(run_dir, host.run, TRACE, KERNEL_EVENTS)
    accounts.begin(out_dir, COLLECTED, FILES)
    account = write_nsys_tables(sqlite, out_dir) if sqlite.exists() else write_empty_tables(out_dir)
    alignment = None
    if sqlite.exists():
        alignment = align(host, _passes(out_dir), account["capture_start_utc_ns"])
        account["warnings"] += _alignment_warnings(alignment)
    elif (host.run.get("profiler") or {}).get("used") == "nsys":
        account["warnings"].append(f"The run was profiled, but {TRACE} is not there.")
    account["alignment"] = alignment and alignment.to_json()
    offset_ns = alignment.offset_ns if alignment else None
    traced = TRACING in host.run and (run_dir / KERNEL_EVENTS).exists()
    if TRACING in host.run and not traced and host.run.get("status") == COMPLETE:
        raise BadInput(f"{run_dir / KERNEL_EVENTS}: no such file, though KV events were traced")
    if traced:
        account["kv_events"] = _kv_events(run_dir, out_dir, host, offset_ns)
    account["rows"][TIMELINE.name] = write_timeline(host, out_dir, offset_ns)
    if perfetto:
        accesses = read_accesses(table_path(out_dir, KV_EVENTS)) if traced else None
        if accesses and accesses.warning:
            account["warnings"].append(accesses.warning)
        write_perfetto(table_path(out_dir, TIMELINE), host, out_dir / PERFETTO, accesses)
    accounts.write(out_dir, COLLECTED, run_dir, FILES, account)


def _kv_events(
    run_dir: Path, out_dir: Path, host: HostRecords, offset_ns: int | None
) -> dict[str, Any]:
    """Write the tables of KV events; a profiler that saw the same kernels tells how far off."""
    launches = None if offset_ns is None else Launches.read(out_dir, offset_ns)
    expected = host.run[TRACING].get("events", 0)
    events = run_dir / KERNEL_EVENTS
    return write_kv_tables(events, out_dir, Judge.of_run(host), launches, expected)


def _passes(out_dir: Path) -> pd.DataFrame:
    """The NVTX ranges of the forward passes of the measured part."""
    own = [("domain", "=", DOMAIN), ("name", "=", FORWARD_PASS), ("kind", "=", "push_pop")]
    columns = ["repeat", "step", "start_ns"]
    texts = [name for name, *_ in own]  # millions of ranges share few of them
    path = table_path(out_dir, NVTX_RANGES)
    rows = pq.read_table(path, columns=columns, filters=own, read_dictionary=texts)
    frame: pd.DataFrame = rows.drop_null().to_pandas()
    return frame


def _alignment_warnings(alignment: Alignment | None) -> list[str]:
    if alignment is None:
        return [
            "The profiler's clock could not be aligned with the host's: the timeline has no "
            "profiler rows."
        ]
    return alignment.warnings()
