"""An Nsight Systems export as kvscope's tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvscope.base.memory import return_freed_arrays
from kvscope.base.reading import sha256_of
from kvscope.collect.nsys import diagnostics, emptiness, health, schema
from kvscope.collect.nsys.cuda_api import ApiCalls
from kvscope.collect.nsys.export import NsysExport
from kvscope.collect.nsys.gpu_work import GpuWork
from kvscope.collect.nsys.nvtx import NvtxRanges
from kvscope.collect.table_writer import write_batches
from kvscope.tables import CUDA_API, GPU_KERNELS, GPU_MEMCPYS, NSYS_TABLES, NVTX_RANGES, Table

DELTA_ENCODED = (
    *("start_ns", "end_ns", "api_start_ns", "api_end_ns"),
    *("id", "parent_id", "nvtx_id", "correlation_id"),
)
"""Columns of instants, and of numbers that mostly grow with them."""


def write_nsys_tables(sqlite: Path, out_dir: Path, cuda_by: str | None = None) -> dict[str, Any]:
    """Write the four tables of an export, all in order of start; give the account of it.

    The account says what was read, how many rows each table has, and what the export lacks;
    `docs/TRACE_SPEC.md` lists its keys. `cuda_by` says what would have traced CUDA, in words. What
    Nsight Systems complains of is written into its log, beside the tables. Raises BadInput if the
    file is no readable export.
    """
    return_freed_arrays()
    with NsysExport(sqlite) as export:
        calls = ApiCalls(export)
        work = GpuWork(export, calls)
        ranges = NvtxRanges(export)
        around, warnings = ranges.surroundings, ranges.warnings
        unclosed = int(ranges.unclosed.sum())
        rows: dict[str, int] = {}

        def write(table: Table, batches: Iterator[dict[str, Any]], total: int) -> None:
            rows[table.name] = write_batches(table, out_dir, batches, total, DELTA_ENCODED)

        write(NVTX_RANGES, ranges.batches(), len(ranges))
        del ranges  # which takes as much memory as the calls will
        write(CUDA_API, calls.batches(), calls.total)  # fills the index that GPU work is joined on
        write(GPU_KERNELS, work.kernels(around), export.count(schema.KERNELS))
        write(GPU_MEMCPYS, work.memcpys(around), export.count(schema.MEMCPYS))
        silent = health.silent_domains(export)
        return {
            "source": {
                "file": sqlite.name,
                "bytes": sqlite.stat().st_size,
                "sha256": sha256_of(sqlite),
            },
            "nsys_version": export.metadata.get("EXPORT_PRODUCT_VERSION"),
            "export_schema_version": export.metadata.get("EXPORT_SCHEMA_VERSION"),
            "capture_start_utc_ns": _utc_of_zero(export),
            "rows": rows,
            "kernels_without_api_record": work.without_api[schema.KERNELS],
            "kernels_without_nvtx_range": work.without_range[schema.KERNELS],
            "copies_without_api_record": work.without_api[schema.MEMCPYS],
            "copies_without_nvtx_range": work.without_range[schema.MEMCPYS],
            "unclosed_ranges": unclosed,
            "cuda_graphs_traced_whole": export.count(schema.GRAPHS),
            "domains_without_ranges": silent,
            "warnings": [
                *emptiness.empty_tables(export, rows, cuda_by),
                *health.warnings(export, silent),
                *diagnostics.write_log(export, out_dir),
                *warnings,
            ],
        }


def write_empty_tables(out_dir: Path) -> dict[str, Any]:
    """Write the four tables without rows, for a run that was not profiled; give the account."""
    for table in NSYS_TABLES:
        write_batches(table, out_dir, ())
    return {"source": None, "rows": {table.name: 0 for table in NSYS_TABLES}, "warnings": []}


def _utc_of_zero(export: NsysExport) -> int | None:
    """UTC time of the instant 0 of the tables' clock, null if the export does not say."""
    start = export.session_start_utc_ns
    return None if start is None else start - export.origin_ns
