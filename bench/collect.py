"""How long collecting a large Nsight Systems export takes, and how much memory.

    python bench/collect.py [--kernels N] [--calls N] [--ranges N] [--before CHECKOUT] [--write]

Makes an export of the given size (run > repeat > forward pass > layer on two threads in each of
two processes, whose correlation ids coincide), collects it in a process of its own, and prints
wall time, processor time and peak resident memory of that process. `--write` keeps the figures in
bench/results/collect.json, with `--before` those of another checkout beside them.

DuckDB 2.0.1 does not join and sort: measured in turns, it took 0.86 s of processor time and 480 MB
to read 500,000 kernels through ADBC, join them with their calls and sort them, where kvscope took
1.08 s and 320 MB for the same with NVTX ranges, attribution and file; SQLite sorts what it reads.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa
from collecting import Options, bench, parquet_bytes, peak_mb

from kvscope.base import ranges
from kvscope.collect.collector import collect_nsys

PROCESSES, THREADS = 2, 2
LAYERS = 32
LAYER_NS, GAP_NS, CALL_NS = 60_000, 20_000, 4_000
PUSH_POP, DOMAIN_CREATE = 59, 75
KERNEL_NAMES = 60
CHUNK = 500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--calls", type=int, default=5_000_000)
    parser.add_argument("--ranges", type=int, default=1_000_000)
    bench(parser, generate, measure, ("adbc-driver-sqlite", "numpy", "pyarrow"))


def measure(sqlite: Path, out: Path) -> dict[str, Any]:
    """Collect here and now."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    account = collect_nsys(sqlite, out)
    wall, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {
        "collect_wall_s": round(wall, 2),
        "collect_cpu_s": round(cpu, 2),
        "peak_rss_mb": peak_mb(),
        "parquet_bytes": parquet_bytes(out),
        "rows": account["rows"],
        "kernels_without_nvtx_range": account["kernels_without_nvtx_range"],
    }


# --- the synthetic export


def generate(sqlite: Path, options: Options) -> None:
    """Write the export thread by thread, so that no table of it is in order of time."""
    lanes = PROCESSES * THREADS
    calls = options.calls // lanes
    with adbc_driver_sqlite.dbapi.connect(str(sqlite)) as connection:
        append(connection, "META_DATA_EXPORT", metadata())
        append(connection, "StringIds", strings())
        for lane in range(lanes):
            process, thread = divmod(lane, THREADS)
            global_pid = (1 << 48) | ((1000 + process) << 24)
            global_tid = global_pid + 2000 + lane
            passes = max(1, options.ranges // lanes // (LAYERS + 1))
            append(connection, "NVTX_EVENTS", nvtx_events(global_tid, passes))
            for first in range(0, calls, CHUNK):
                call = np.arange(first, min(first + CHUNK, calls))
                start = call_start(call, calls, passes * LAYERS)
                correlation = call * THREADS + thread
                append(
                    connection,
                    "CUPTI_ACTIVITY_KIND_RUNTIME",
                    api_calls(start, global_tid, correlation),
                )
                own = call < options.kernels // lanes
                append(
                    connection,
                    "CUPTI_ACTIVITY_KIND_KERNEL",
                    kernel_rows(start[own], global_pid, correlation[own], lane),
                )


def append(connection: Any, table: str, columns: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        cursor.adbc_ingest(table, pa.table(columns), mode="create_append")
    connection.commit()


def metadata() -> dict[str, Any]:
    return {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["3.24.14"]}


def strings() -> dict[str, Any]:
    """Ids: 0 the API call, then long and short kernel names, then the ranges' names."""
    long = [
        f"void at::native::kernel_{i}<" + ", ".join(["std::array<char *, 3ul>"] * 12) + ">(int)"
        for i in range(KERNEL_NAMES)
    ]
    short = [f"kernel_{i}" for i in range(KERNEL_NAMES)]
    names = [ranges.RUN, ranges.REPEAT, ranges.FORWARD_PASS, ranges.LAYER]
    values = ["cudaLaunchKernel_v7000", *long, *short, *names]
    return {"id": np.arange(len(values)), "value": values}


def nvtx_events(global_tid: int, passes: int) -> dict[str, Any]:
    pass_ns = LAYERS * LAYER_NS + GAP_NS
    pass_start = np.arange(passes) * pass_ns + GAP_NS
    layer_start = (pass_start[:, None] + np.arange(LAYERS) * LAYER_NS).ravel() + 500
    start = np.concatenate([[0, 1, 2], pass_start, layer_start])
    end = np.concatenate(
        [
            [1, passes * pass_ns + GAP_NS + 2, passes * pass_ns + GAP_NS + 1],
            pass_start + LAYERS * LAYER_NS,
            layer_start + LAYER_NS - 1000,
        ]
    )
    first = 1 + 2 * KERNEL_NAMES
    text_id = first + np.repeat([0, 0, 1, 2, 3], [1, 1, 1, passes, passes * LAYERS])
    payload = np.concatenate(
        [[0, 0, 0], np.arange(passes), np.tile(np.arange(LAYERS), passes)],
    )
    rows = len(start)
    creates = np.arange(rows) == 0
    return {
        "start": start,
        "end": pa.array(end, mask=creates),
        "eventType": np.where(creates, DOMAIN_CREATE, PUSH_POP),
        "text": pa.array([ranges.DOMAIN] + [None] * (rows - 1), pa.string()),
        "globalTid": np.full(rows, global_tid),
        "textId": pa.array(text_id, mask=creates),
        "domainId": np.full(rows, 1),
        "int64Value": pa.array(payload, mask=creates | (text_id == first)),
    }


def call_start(call: Any, calls: int, layers: int) -> Any:
    """Calls spread evenly over the layers, each within one layer."""
    place = call * layers / max(calls, 1)
    layer = np.floor(place).astype(np.int64)
    pass_ = layer // LAYERS
    begin = GAP_NS + pass_ * (LAYERS * LAYER_NS + GAP_NS) + layer % LAYERS * LAYER_NS
    within = (place - layer) * (LAYER_NS - CALL_NS - 4000)
    return begin + 1000 + within.astype(np.int64)


def api_calls(start: Any, global_tid: int, correlation: Any) -> dict[str, Any]:
    zero = np.zeros(len(start), np.int64)
    return {
        **{"start": start, "end": start + CALL_NS, "eventClass": zero},
        "globalTid": np.full(len(start), global_tid),
        **{"correlationId": correlation, "nameId": zero, "returnValue": zero},
        "callchainId": pa.nulls(len(start), pa.int64()),
    }


def kernel_rows(start: Any, global_pid: int, correlation: Any, lane: int) -> dict[str, Any]:
    rows = len(start)
    name = correlation % KERNEL_NAMES
    constant = {
        **{"deviceId": lane // THREADS, "contextId": 1, "streamId": 7 + lane % THREADS},
        **{"globalPid": global_pid, "registersPerThread": 32, "gridX": 128, "gridY": 1},
        **{"gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1, "staticSharedMemory": 0},
        **{"dynamicSharedMemory": 0, "localMemoryPerThread": 0, "localMemoryTotal": 0},
    }
    return {
        **{"start": start + 8000, "end": start + 8000 + 1000 + name * 50},
        **{"correlationId": correlation, "gridId": correlation},
        **{"demangledName": 1 + name, "shortName": 1 + KERNEL_NAMES + name},
        **{key: np.full(rows, value) for key, value in constant.items()},
        "graphNodeId": pa.nulls(rows, pa.int64()),
    }


if __name__ == "__main__":
    main()
