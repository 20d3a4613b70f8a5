"""CUDA API calls, and which of them launched a kernel or copy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kvscope.base.arraytypes import Bools, Int64s
from kvscope.collect.nsys import schema
from kvscope.collect.nsys.export import NsysExport, Query
from kvscope.collect.nsys.nullable import NULL, to_arrow, to_numpy
from kvscope.collect.nsys.schema import pid_of, tid_of


class ApiCalls:
    """The API calls of an export, streamed once, and then found by what they launched.

    GPU work names its call by correlation id, which is unique within a process only: the key is
    both. Where several records share a key (a driver call within a runtime call, or the same
    call recorded twice), the launch is the outermost: it starts first and, of those, ends last.
    That is the call the program made, and all of them lie in the same NVTX ranges.
    """

    def __init__(self, export: NsysExport) -> None:
        self._export = export
        self.total = export.count(schema.CALLS)
        query = Query(schema.CALLS, schema.CALL_COLUMNS)
        self._rows = export.stream(query) if self.total else iter(())
        self._processes: dict[int, int] = {}
        self.key = np.empty(self.total, np.int64)
        self.start = np.empty(self.total, np.int64)
        self.end = np.empty(self.total, np.int64)
        self.thread = np.empty(self.total, np.int64)

    def batches(self) -> Iterator[dict[str, Any]]:
        """The rows of the cuda_api table, in order of their start; fills the index."""
        done = 0
        for rows in self._rows:
            thread, correlation = to_numpy(rows["globalTid"]), to_numpy(rows["correlationId"])
            part = slice(done, done + len(thread))
            self.start[part], self.end[part] = to_numpy(rows["start"]), to_numpy(rows["end"])
            self.thread[part] = thread
            self.key[part] = self._keys(thread, correlation, register=True)
            done += len(thread)
            has_thread = thread != NULL
            yield {
                "start_ns": rows["start"],
                "end_ns": rows["end"],
                "name": self._export.strings.lookup(rows["nameId"]),
                "pid": to_arrow(np.where(has_thread, pid_of(thread), NULL), pa.int64()),
                "tid": to_arrow(np.where(has_thread, tid_of(thread), NULL), pa.int64()),
                "correlation_id": rows["correlationId"],
                "return_value": rows["returnValue"],
            }
        self._sort()

    def _sort(self) -> None:
        order = np.argsort(self.key, kind="stable")  # stable: by start where keys are equal
        for name in ("key", "start", "end", "thread"):
            setattr(self, name, getattr(self, name)[order])

    def find_launches(self, process: Int64s, correlation: Int64s) -> Int64s:
        """The place of the call that launched each piece of GPU work, or -1 for none recorded."""
        keys = self._keys(process, correlation, register=False)
        if not self.total:
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(self.key, keys), self.total - 1)
        matches: Bools = (self.key[places] == keys) & (keys != NULL)
        return np.where(matches, places, -1)

    def _keys(self, global_id: Int64s, correlation: Int64s, register: bool) -> Int64s:
        """Process number and (32-bit) correlation id as one integer; NULL if either is unknown."""
        processes = np.where(global_id == NULL, NULL, global_id >> 24)
        distinct, place = np.unique(processes, return_inverse=True)
        if register:
            for process in distinct[distinct != NULL].tolist():
                self._processes.setdefault(process, len(self._processes))
        numbers = np.array([self._processes.get(p, NULL) for p in distinct.tolist()], np.int64)
        number = numbers[place]
        unknown = (number == NULL) | (correlation == NULL)
        return np.where(unknown, NULL, (number << 32) | (correlation & 0xFFFFFFFF))
