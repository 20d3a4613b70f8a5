"""Time and memory of collecting a large file of KV events.

    python bench/collect_events.py [--events N] [--rows N] [--write]

Makes a raw file of decode passes (each flush one layer: `rows` requests of about 40 blocks, 8 KV
heads, on 2 workers), collects it in a process of its own, oracles included, and prints events per
second and peak resident memory of that process. `--write` keeps the figures in
bench/results/collect_events.json.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard
from collecting import Options, bench, parquet_bytes, peak_mb

from kvscope.tables.runschema import TracingRecord
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import read_flushes
from kvscope_kernels.collect.tables import write_kv_tables
from kvscope_kernels.kv_events import (
    COLUMNS,
    FLUSH_VERSION,
    RECORD,
    RECORD_ALL_HEADS,
    encode_records,
)
from kvscope_kernels.oracles.judge import Judge
from kvscope_kernels.oracles.run_facts import RunFacts

LAYERS, HEADS, WORKERS, BLOCK_SIZE = 32, 8, 2, 16
DIFFERENT = 8  # different flushes; they are repeated with other times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=32, help="requests of a batch")
    bench(parser, generate, measure, ("numpy", "orjson", "pyarrow", "zstandard"))


def measure(raw: Path, out: Path) -> dict[str, Any]:
    """Collect here and now; then read alone."""
    samples = [{"ticks": t, "host_ns": t, "uncertainty_ns": 50} for t in (0, 10**12)]
    clock = {"name": "ns", "ns_per_tick": 1.0, "samples": samples}
    tracing = TracingRecord.model_validate({"name": "full", "clock": clock})
    begin, cpu_begin = time.perf_counter(), time.process_time()
    account = write_kv_tables(raw, out, Judge(RunFacts(EventClock.of_run(tracing, raw))))
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    peak = peak_mb()
    begin = time.perf_counter()
    events = sum(len(flush) for flush in read_flushes(raw))
    reading = time.perf_counter() - begin
    violated = {n: o["violations"] for n, o in account["oracles"].items() if o["violations"]}
    assert not violated, violated
    assert events == account["rows"]
    return {
        "events": account["rows"],
        "collect_wall_s": round(wall, 2),
        "events_per_s": round(account["rows"] / wall),
        "cpu_s": round(cpu, 2),
        "reading_alone_s": round(reading, 2),
        "peak_rss_mb": peak,
        "parquet_bytes": parquet_bytes(out),
    }


# --- the synthetic file


def generate(path: Path, options: Options) -> None:
    """Decode passes until there are at least so many events."""
    models = [flush(np.random.default_rng(seed), options.rows) for seed in range(DIFFERENT)]
    written, number, now = 0, 0, 1_000_000
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        while written < options.events:
            result = models[number % DIFFERENT]
            step, layer = divmod(number, LAYERS)
            result |= {"step": step, "layer": layer, "origin_ticks": now}
            stream.write(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            now += result["kernels"][-1]["end_ticks"] + 50_000
            written += sum(result["segments"]["events"])
            number += 1


def flush(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """The layer of a decode pass: writes, then K and V reads of all blocks, request by request."""
    context = random.integers(500, 780, rows)
    blocks = -(-(context + 1) // BLOCK_SIZE)
    ids = random.permutation(np.arange(blocks.sum()))
    table = np.split(ids, np.cumsum(blocks)[:-1])
    kernels: list[dict[str, Any]] = []
    segments: dict[str, list[int]] = {n: [] for n in ("kernel", "worker", "events", "dropped")}
    parts: list[dict[str, Any]] = []
    now = 0
    for name, make in (("write", writes), ("attention", reads)):
        ends = []
        for worker in range(WORKERS):
            part = make(range(worker, rows, WORKERS), context, table)
            took = random.integers(200, 400, len(part["kind"]))
            gap = random.integers(5, 30, len(part["kind"]))
            end = now + np.cumsum(took + gap)
            parts.append(part | {"start_ticks": end - took, "duration_ticks": took})
            ends.append(int(end[-1]))
            for key, value in zip(segments, (len(kernels), worker, len(end), 0), strict=True):
                segments[key].append(value)
        kernels.append({"kernel": name, "start_ticks": now, "end_ticks": max(ends)})
        now = max(ends) + 1000
    return {
        **{"version": FLUSH_VERSION, "repeat": 0, "step": 0, "layer": 0, "phase": "decode"},
        **{"block_size": BLOCK_SIZE, "tile_tokens": 64, "kv_heads": list(range(HEADS))},
        "requests": [str(row) for row in range(rows)],
        "phases": ["decode"] * rows,
        "context_tokens": context,
        "scheduled_tokens": [1] * rows,
        "block_table": [row.tolist() for row in table],
        "origin_ticks": 0,
        "kernels": kernels,
        "segments": segments,
        "records": encode_records(records(parts), 0),
    }


def records(parts: list[dict[str, Any]]) -> np.ndarray:
    result = np.zeros(sum(len(part["kind"]) for part in parts), RECORD)
    for name in COLUMNS:
        result[name] = np.concatenate([part[name] for part in parts])
    return result


def writes(own: range, context: Any, table: list[Any]) -> dict[str, Any]:
    row = np.repeat(own, 2)
    return {
        "kind": np.tile([2, 3], len(own)),
        "row": row,
        "kv_head": np.full(len(row), RECORD_ALL_HEADS),
        "block": np.array([table[r][-1] for r in row]),
        "block_position": context[row] // BLOCK_SIZE,
        "offset_tokens": context[row] % BLOCK_SIZE,
        "tokens": np.ones(len(row), int),
    }


def reads(own: range, context: Any, table: list[Any]) -> dict[str, Any]:
    parts = []
    for row in own:
        blocks = len(table[row])
        position = np.tile(np.arange(blocks), 2 * HEADS)
        parts.append(
            {
                "kind": np.tile(np.repeat([0, 1], blocks), HEADS),
                "row": np.full(len(position), row),
                "kv_head": np.repeat(np.arange(HEADS), 2 * blocks),
                "block": np.tile(table[row], 2 * HEADS),
                "block_position": position,
                "offset_tokens": np.zeros(len(position), int),
                "tokens": np.minimum(BLOCK_SIZE, context[row] + 1 - position * BLOCK_SIZE),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


if __name__ == "__main__":
    main()
