"""Writes Nsight Systems exports in the DDL of several schema versions, and small run directories.

The columns are those that real exports of each version have; new ones sit where they do in the
real tables. A table comes into being with its first row, as in an export.
"""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.base import ranges
from kvscope.tables import LAYERS, PREEMPTIONS, REQUESTS, STEPS, write
from kvscope.tables.evidence import OWN
from kvscope.tables.runfile import write_run

VERSIONS = ("2.9.1", "3.0.0", "3.7.2", "3.11.1", "3.16.1", "3.24.14", "3.25.0")
PUSH_POP, START_END, IMPORTED_PUSH_POP, IMPORTED_START_END = 59, 60, 70, 71
DOMAIN_CREATE, DOMAIN_DESTROY, MARK = 75, 76, 34
RUNTIME_CALL, DRIVER_CALL = 0, 1
CAPTURE_END = 1_000_000

_WORK = "start! end! deviceId! contextId! green streamId! correlationId globalPid "
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _WORK
    + "demangledName! shortName! mangledName launchType cacheConfig registersPerThread! cluster "
    "gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! "
    "localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId "
    "sharedMemoryLimitConfig tensor",
    "CUPTI_ACTIVITY_KIND_MEMCPY": _WORK
    + "bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId "
    "dstContextId migrationCause graphNodeId virtualAddress copies name2",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! "
    "returnValue! callchainId name2",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _WORK + "graphId! graphExecId!",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue uint32Value int32Value floatValue "
    "jsonTextId jsonText binary",
    "StringIds": "id! value!",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime clock",
    "META_DATA_CAPTURE": "name! value",
    "TARGET_INFO_GPU": "id! name",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text! globalPid",
    "META_DATA_EXPORT": "name! value",
    "EXPORT_META_DATA": "name! value",
}
# Words above that stand for columns of some versions only: (first version, columns).
_SINCE = {
    "green": ((3, 7), "greenContextId"),
    "cluster": ((3, 24), "qmdBulkReleaseDone graphId clusterX clusterY clusterZ"),
    "tensor": ((3, 25), "tensorSizeMinusOneElements!"),
    "copies": ((3, 24), "copyCount"),
    "binary": ((3, 16), "binaryData"),
    "clock": ((3, 24), "systemClockNs"),
}
_TEXT = {
    *("text", "jsonText", "binaryData", "value", "name", "utcTime", "localTime"),
    "tensorSizeMinusOneElements",
}
_REAL = {"doubleValue", "floatValue"}


def global_id(pid: int, tid: int = 0) -> int:
    return (1 << 48) | (pid << 24) | tid


def columns_of(table: str, version: str) -> dict[str, str]:
    """Column names and declarations of a table in a schema version."""
    numbers = tuple(int(n) for n in version.split(".")[:2])
    words: list[str] = []
    for word in _TABLES[table].split():
        if word == "name2":  # schema 2 alone repeats the name as text
            words += ["name"] if numbers < (3, 0) else []
        elif word in _SINCE:
            since, columns = _SINCE[word]
            words += columns.split() if numbers >= since else []
        else:
            words.append(word)
    return {word.rstrip("!"): _declaration(word) for word in words}


def _declaration(word: str) -> str:
    name = word.rstrip("!")
    type_ = "TEXT" if name in _TEXT else "REAL" if name in _REAL else "INTEGER"
    return f"{type_} NOT NULL" if word.endswith("!") else type_


class NsysFile:
    """An export that is written row by row."""

    def __init__(
        self, path: Path, version: str = "3.24.14", capture_end: int | None = CAPTURE_END
    ) -> None:
        self.path = path
        self.version = version
        self.sql = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self._made: set[str] = set()
        old = tuple(int(n) for n in version.split(".")[:2]) < (3, 4)
        metadata = "EXPORT_META_DATA" if old else "META_DATA_EXPORT"
        self.insert(metadata, name="EXPORT_SCHEMA_VERSION", value=version)
        self.insert(metadata, name="EXPORT_PRODUCT_VERSION", value="2024.1.1.1")
        self.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
        if capture_end is not None:
            self.insert("ANALYSIS_DETAILS", duration=capture_end)

    def insert(self, table: str, **values: Any) -> None:
        columns = columns_of(table, self.version)
        if table not in self._made:
            body = ", ".join(f'"{name}" {type_}' for name, type_ in columns.items())
            self.sql.execute(f"CREATE TABLE {table} ({body})")
            self._made.add(table)
        row = {
            name: values.pop(name, ("" if "TEXT" in type_ else 0) if "NOT" in type_ else None)
            for name, type_ in columns.items()
        }
        assert not values, f"{table} has no {sorted(values)} in {self.version}"
        marks = ", ".join("?" * len(row))
        self.sql.execute(f"INSERT INTO {table} VALUES ({marks})", list(row.values()))

    def create(self, table: str) -> None:
        """Make a table without rows, as an export with --lazy=false does."""
        body = ", ".join(f'"{n}" {t}' for n, t in columns_of(table, self.version).items())
        self.sql.execute(f"CREATE TABLE {table} ({body})")
        self._made.add(table)

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.insert("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        thread: int | None,
        kind: int = PUSH_POP,
        registered: bool = False,
        **values: Any,
    ) -> None:
        """A range with a text of its own or, if registered, an id into StringIds."""
        named = {"textId": self.string(name)} if registered else {"text": name}
        row = {"start": start, "end": end, "eventType": kind, "globalTid": thread, "domainId": 0}
        self.insert("NVTX_EVENTS", **(row | named | values))

    def domain(self, name: str, id_: int, thread: int, start: int = 0) -> None:
        self.range(name, start, None, thread, kind=DOMAIN_CREATE, domainId=id_)

    def call(
        self, start: int, end: int, thread: int | None, correlation: int | None, **values: Any
    ) -> None:
        row = {"start": start, "end": end, "globalTid": thread, "correlationId": correlation}
        name = self.string(values.pop("name", "cudaLaunchKernel_v7000"))
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", nameId=name, **(row | values))

    def kernel(
        self, start: int, end: int, process: int | None, correlation: int | None, **values: Any
    ) -> None:
        name = values.pop("name", "gemm")
        row = {"start": start, "end": end, "globalPid": process, "correlationId": correlation}
        names = {
            "demangledName": self.string(f"void {name}<int>()"),
            "shortName": self.string(name),
        }
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", **(row | names | values))

    def copy(self, start: int, end: int, process: int, correlation: int, **values: Any) -> None:
        row = {"start": start, "end": end, "globalPid": process, "correlationId": correlation}
        self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", **(row | {"copyKind": 1, "bytes": 64} | values))

    def close(self) -> Path:
        self.sql.commit()
        self.sql.close()
        return self.path

    def kvscope(self, thread: int) -> "Kvscope":
        """Ranges of kvscope's own domain on a thread."""
        self.domain(ranges.DOMAIN, 1, thread)
        return Kvscope(self, thread)


@dataclass(frozen=True)
class Kvscope:
    """Writes the ranges that a run pushes; each takes its number as integer payload."""

    file: NsysFile
    thread: int

    def __call__(self, name: str, start: int, end: int, payload: int | None = None) -> None:
        self.file.range(
            name, start, end, self.thread, registered=True, domainId=1, int64Value=payload
        )


@dataclass
class RunDirectory:
    """A run directory's own records; what is not given has no rows."""

    path: Path
    repeats: list[dict[str, Any]] = field(
        default_factory=lambda: [{"repeat": 0, "start_ns": 1_000_000_000, "duration_s": 2.0}]
    )
    utc_ns: int = 1_700_000_000_000_000_000
    profiler: str = "none"
    steps: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    preemptions: list[dict[str, Any]] = field(default_factory=list)

    def write(self) -> Path:
        for table, rows in (
            (STEPS, self.steps),
            (LAYERS, self.layers),
            (REQUESTS, self.requests),
            (PREEMPTIONS, self.preemptions),
        ):
            frame = pd.DataFrame(rows, columns=table.names)
            write(table, frame, self.path / f"{table.name}.parquet")
        clock = {
            "run_start_monotonic_ns": 5,
            "run_start_utc_ns": self.utc_ns,
            "repeats": self.repeats,
        }
        record = {"experiment_id": "run", "status": "complete", "clock": clock}
        record |= {"profiler": {"used": self.profiler}, "evidence": sorted(OWN), "files": {}}
        write_run(self.path, record)
        return self.path
