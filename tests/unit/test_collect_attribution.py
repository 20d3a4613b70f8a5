"""Nesting and attribution equal what direct SQL says, for whatever threads may do.

Threads push and pop ranges in two domains, each with a stack of its own (so that ranges of
different domains may cross), and call the API in between. Several things may happen at one
instant, as on machines with a coarse clock; a call takes time.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.collect.collector import collect_nsys

from .nsys_fixture import (
    CAPTURE_END,
    DRIVER_CALL,
    IMPORTED_PUSH_POP,
    PUSH_POP,
    NsysFile,
    global_id,
)

THREADS = (global_id(1, 1), global_id(1, 2), global_id(2, 1))
NAMES = ("a", "b", "c")

Action = tuple[str, int, int, str]
ACTION = st.tuples(
    st.sampled_from(["push", "push", "pop", "pop", "call"]),
    st.integers(0, 1),  # domain
    st.sampled_from([0, 0, 0, 1, 2]),  # time that passes before
    st.sampled_from(NAMES),
)
PROGRAMS = st.tuples(*[st.lists(ACTION, min_size=size, max_size=24) for size in (8, 0, 0)])

KEY = "r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24"
LAUNCH = f"""
    (SELECT r.rowid FROM CUPTI_ACTIVITY_KIND_RUNTIME r WHERE {KEY}
     ORDER BY r.start, r.end DESC LIMIT 1)"""
END = f"COALESCE(n.end, {CAPTURE_END})"
AROUND = f"""
    SELECT k.rowid, n.text, n.rowid FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.rowid = {LAUNCH}
    JOIN NVTX_EVENTS n ON n.eventType IN (59, 70) AND n.globalTid = r.globalTid
        AND n.start <= r.start AND {END} >= r.end
    ORDER BY k.rowid, n.start, {END} DESC, n.rowid"""
PARENT = f"""
    SELECT c.rowid, (
        SELECT n.rowid FROM NVTX_EVENTS n
        WHERE n.globalTid = c.globalTid AND n.start <= c.start AND {END} >= c.e
            AND {END} > n.start AND ((n.start, {END}) != (c.start, c.e) OR n.rowid < c.rowid)
        ORDER BY n.start DESC, {END}, n.rowid DESC LIMIT 1)
    FROM (SELECT rowid, *, COALESCE(end, {CAPTURE_END}) AS e FROM NVTX_EVENTS) c"""


def record(path: Path, programs: tuple[list[Action], ...]) -> NsysFile:
    """Let each thread act, and record it as the profiler would; every third call goes missing."""
    file = NsysFile(path)
    for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
        file.create(table)
    for number, (thread, program) in enumerate(zip(THREADS, programs, strict=True)):
        act(file, number, thread, program)
    return file


def act(file: NsysFile, number: int, thread: int, program: list[Action]) -> None:
    now = calls = 0
    stacks: dict[int, list[tuple[str, int]]] = {0: [], 1: []}
    for action, domain, wait, name in program:
        now += wait
        if action == "push":
            stacks[domain].append((name, now))
        elif action == "pop" and stacks[domain]:
            kind = IMPORTED_PUSH_POP if wait == 2 else PUSH_POP
            opened, start = stacks[domain].pop()
            file.range(opened, start, now, thread, kind=kind, domainId=domain)
        elif action == "call":
            calls += 1
            correlation = 10 * calls + number % 2  # the same in both processes
            if calls % 2:  # with a driver call within it, which starts at once
                file.call(now, now + 3, thread, correlation, eventClass=DRIVER_CALL)
            if calls % 3:
                file.call(now, now + 4, thread, correlation)
            process = thread - thread % 2**24
            file.kernel(now + 9, now + 10 + number, process, correlation, name=name)
            now += 4
    for domain, stack in stacks.items():
        for position, (name, start) in enumerate(stack):
            end = None if position % 2 else CAPTURE_END
            file.range(name, start, end, thread, domainId=domain)


def renumbered(file: NsysFile) -> dict[int, int]:
    """The id a range gets from its row in the export: its place by start, outer before inner."""
    rows = file.sql.execute(f"SELECT rowid FROM NVTX_EVENTS n ORDER BY start, {END} DESC, rowid")
    return {row: place for place, (row,) in enumerate(rows)}


@pytest.mark.thorough
@pytest.mark.slow
@given(PROGRAMS)
def test_kernels_and_ranges_are_where_sql_finds_them(
    programs: tuple[list[Action], ...],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = record(Path(folder) / "trace.sqlite", programs)
        paths: dict[int, list[str]] = {}
        innermost: dict[int, int] = {}
        ids = renumbered(file)
        for kernel, name, range_ in file.sql.execute(AROUND):
            paths.setdefault(kernel, []).append(name)
            innermost[kernel] = ids[range_]
        kernels = pd.DataFrame(
            file.sql.execute("SELECT rowid, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL"),
            columns=["row", "start_ns", "end_ns"],
        ).sort_values(["start_ns", "end_ns", "row"])
        parents = {
            ids[row]: -1 if parent is None else ids[parent]
            for row, parent in file.sql.execute(PARENT)
        }
        calls = dict(
            file.sql.execute(
                f"""SELECT k.rowid, COALESCE((SELECT MAX(r.end)
                    FROM CUPTI_ACTIVITY_KIND_RUNTIME r WHERE {KEY}), -1)
                    FROM CUPTI_ACTIVITY_KIND_KERNEL k"""
            )
        )
        durations = file.sql.execute('SELECT SUM("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL')
        expected_duration = durations.fetchone()[0] or 0
        out = Path(folder) / "out"
        collect_nsys(file.close(), out)
        found = tables.read(tables.GPU_KERNELS, out / "gpu_kernels.parquet")
        ranges = tables.read(tables.NVTX_RANGES, out / "nvtx_ranges.parquet")

    assert (found["end_ns"] - found["start_ns"]).sum() == expected_duration
    assert found["start_ns"].tolist() == kernels["start_ns"].tolist()
    expected_paths = ["/".join(paths.get(row, [])) for row in kernels["row"]]
    assert found["nvtx_path"].fillna("").tolist() == expected_paths
    assert Counter(found["nvtx_path"].dropna()) == Counter(filter(None, expected_paths))
    assert found["api_end_ns"].fillna(-1).astype(int).tolist() == [calls[r] for r in kernels["row"]]
    expected_ids = [innermost.get(row, -1) for row in kernels["row"]]
    assert found["nvtx_id"].fillna(-1).astype(int).tolist() == expected_ids
    assert ranges["parent_id"].fillna(-1).astype(int).to_dict() == parents
    row: Any
    for row in ranges.itertuples():
        above = None if pd.isna(row.parent_id) else ranges.loc[int(row.parent_id)]
        assert row.depth == (0 if above is None else above["depth"] + 1)
        assert row.path == (row.name if above is None else f"{above['path']}/{row.name}")
