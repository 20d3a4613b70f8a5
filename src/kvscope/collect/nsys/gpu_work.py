"""GPU work: kernels and copies, each joined to its API call and to the NVTX ranges around it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kvscope.collect.nsys.attribution import Surroundings
from kvscope.collect.nsys.cuda_api import ApiCalls
from kvscope.collect.nsys.export import NsysExport, Query
from kvscope.collect.nsys.nullable import NULL, take, to_arrow, to_numpy
from kvscope.collect.nsys.schema import (
    DIRECTIONS,
    KERNEL_COLUMNS,
    KERNELS,
    MEMCPY_COLUMNS,
    MEMCPYS,
    MEMORIES,
    pid_of,
    tid_of,
)


class GpuWork:
    """Streams the kernels and the copies of an export, by start; counts what has no origin."""

    def __init__(self, export: NsysExport, calls: ApiCalls) -> None:
        self._names = export.strings
        self._calls = calls
        self._kernels = _stream(export, KERNELS, KERNEL_COLUMNS)
        self._memcpys = _stream(export, MEMCPYS, MEMCPY_COLUMNS)
        self.without_api = {KERNELS: 0, MEMCPYS: 0}
        self.without_range = {KERNELS: 0, MEMCPYS: 0}

    def kernels(self, around: Surroundings) -> Iterator[dict[str, Any]]:
        """The rows of the gpu_kernels table."""
        for rows in self._kernels:
            yield self._row_columns(KERNELS, rows, around) | {
                "name": self._names.lookup(rows["demangledName"]),
                "short_name": self._names.lookup(rows["shortName"]),
                "grid": _dim3(rows, "grid"),
                "block_dim": _dim3(rows, "block"),
                "graph_node_id": rows["graphNodeId"],
            }

    def memcpys(self, around: Surroundings) -> Iterator[dict[str, Any]]:
        """The rows of the gpu_memcpys table."""
        for rows in self._memcpys:
            yield self._row_columns(MEMCPYS, rows, around) | {
                "direction": _labels(rows["copyKind"], DIRECTIONS),
                "source_memory": _labels(rows["srcKind"], MEMORIES),
                "destination_memory": _labels(rows["dstKind"], MEMORIES),
                "bytes": rows["bytes"],
            }

    def _row_columns(
        self, table: str, rows: pa.RecordBatch, around: Surroundings
    ) -> dict[str, Any]:
        """Process, thread, times and ranges of the work, and the call that launched it."""
        process = to_numpy(rows["globalPid"])
        call = self._calls.find_launches(process, to_numpy(rows["correlationId"]))
        thread = take(self._calls.thread, call)
        start, end = take(self._calls.start, call), take(self._calls.end, call)
        context = around.of(thread, start, end)
        self.without_api[table] += int(np.count_nonzero(call < 0))
        self.without_range[table] += context["nvtx_id"].null_count
        return {
            "start_ns": rows["start"],
            "end_ns": rows["end"],
            "device": rows["deviceId"],
            "context": rows["contextId"],
            "stream": rows["streamId"],
            "correlation_id": rows["correlationId"],
            "pid": to_arrow(np.where(process == NULL, NULL, pid_of(process)), pa.int64()),
            "tid": to_arrow(np.where(thread == NULL, NULL, tid_of(thread)), pa.int64()),
            "api_start_ns": to_arrow(start, pa.int64()),
            "api_end_ns": to_arrow(end, pa.int64()),
            **context,
        }


def _stream(export: NsysExport, table: str, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    if table not in export.tables:
        return iter(())
    return export.stream(Query(table, columns, order='start, "end", row'))


def _dim3(rows: pa.RecordBatch, prefix: str) -> pa.FixedSizeListArray:
    xyz = [rows[prefix + axis].fill_null(0).to_numpy() for axis in "XYZ"]
    flat = np.stack(xyz, axis=1).astype(np.int32).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), 3)


def _labels(codes: pa.Array, labels: tuple[str, ...]) -> pa.Array:
    """The label of each code, or the code's own digits where it has none."""
    distinct = codes.dictionary_encode()
    texts = [
        labels[code] if 0 <= code < len(labels) else str(code)
        for code in distinct.dictionary.to_pylist()
    ]
    return pa.DictionaryArray.from_arrays(distinct.indices, pa.array(texts, pa.string()))
