"""Every metric of a run's passes and requests, against a walk over the rows of its tables.

The formulas stand here a second time, as docs/METRICS.md has them: plain Python, row by row.
"""

import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope import tables
from kvscope.judge.records import Records, read_records
from kvscope.metrics.registry import all_metrics
from kvscope.tables.stalls import find_stalls
from tests.unit.report_fixture import Fake, write_experiment

KINDS = {
    "small pool": Fake({"kind": "pool"}, "swap, a small pool"),
    "mixed": Fake({"kind": "mixed"}, "mixed", repeats=2),
}
# tests/unit/test_overhead.py has these.
OVERHEAD = {f"resume_overhead_net{of}_s" for of in ("", "_control", "_uncertainty")}
OF_GROUPS = ("kv_byte_utilization_mean", "kv_padding_mean")
METRICS = [
    metric for metric in all_metrics() if metric.needs_passes and metric.name not in OVERHEAD
]


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A run of several repeats; late arrivals, requests given up and stalls are put into it."""
    directory: Path = write_experiment(KINDS[request.param], tmp_path_factory.mktemp("results"))
    records = read_records(directory)
    requests, steps = records.requests.copy(), records.steps.copy()
    number = requests["request_id"].astype(int)
    requests["arrival_s"] = 0.0005 + 0.003 * ((number * 5) % 12)
    requests["aborted"] = number % 4 == 1
    requests.loc[requests["aborted"], "output_tokens"] -= 3
    requests.loc[number == 5, "first_token_s"] = None
    steps.loc[steps["step"] % 50 == 7, "duration_s"] *= 8
    steps["stalled"] = find_stalls(steps)
    assert steps["stalled"].sum() > 2
    return with_prefix_cache(records.variant(requests=requests, steps=steps))


def with_prefix_cache(records: Records) -> Records:
    """The run, with some of its tokens found in a prefix cache."""
    batch, preemptions = records.batch.copy(), records.preemptions.copy()
    batch["hit_tokens"] = 16 * (batch["step"] % 7 == 3)
    batch["own_hit_tokens"] = batch["hit_tokens"] * (batch["request_id"].astype(int) % 3 == 0)
    preemptions["hit_tokens"] = preemptions["hit_tokens"] + 16 * (preemptions["step"] % 5)
    lost = pd.DataFrame({"repeat": [0, 0, 1], "step": [3, 5, 4]})
    evictions = lost.reindex(columns=tables.EVICTIONS.names)
    engine = records.facts["engine"] | {"prefix_cache": []}
    frames = {"batch": batch, "preemptions": preemptions, "evictions": evictions}
    return records.variant(facts=records.facts | {"engine": engine}, **frames)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def by_rows(run: Records, repeat: int) -> dict[str, float]:
    """Every metric of one repeat."""
    steps, requests, batch, preemptions, transfers, jobs = (
        [row for row in rows_of(frame) if row["repeat"] == repeat]
        for frame in (run.steps, run.requests, run.batch, run.preemptions, run.transfers, run.jobs)
    )
    served = [row for row in requests if not row["aborted"]]
    lost = [row for row in preemptions if row["event"] == "preempt"]
    back = [row for row in preemptions if row["event"] == "resume"]
    time = sum(row["duration_s"] for row in steps)
    makespan = max(r["finished_s"] for r in requests) - min(r["arrival_s"] for r in requests)
    stall = _stall_s(run, repeat)
    prompt, output = (sum(r[f"{of}_tokens"] for r in served) for of in ("prompt", "output"))

    def weighted(column: str, capacity: int) -> float:
        each = (r[column] / (r["kv_blocks_total"] * capacity) * r["duration_s"] for r in steps)
        return sum(each) / time

    def phase(name: str, column: str) -> float:
        of_phase = [row for row in steps if row["phase"] == name]
        seconds = sum(row["duration_s"] for row in of_phase)
        return sum(row[column] for row in of_phase) / seconds if of_phase else math.nan

    resuming = sum(r["duration_s"] for r in steps if r["resumed_requests"])
    pool = [r["host_blocks_used"] / r["host_blocks_total"] for r in steps if r["host_blocks_total"]]
    kv = [row for row in transfers if row["kind"] == "kv"]
    out, into = (
        _total([r for r in kv if r["direction"] == way], "copy_s") for way in ("out", "in")
    )
    return {
        "makespan_s": makespan,
        "throughput_tokens_per_s": (prompt + output) / makespan,
        "throughput_without_stalls_tokens_per_s": (prompt + output) / (makespan - stall),
        "output_throughput_tokens_per_s": output / makespan,
        "prefill_throughput_tokens_per_s": phase("prefill", "prefill_tokens"),
        "decode_throughput_tokens_per_s": phase("decode", "decode_tokens"),
        "mixed_throughput_tokens_per_s": phase("mixed", "scheduled_tokens"),
        **_spread("ttft", [r["first_token_s"] - r["arrival_s"] for r in served]),
        **_spread("itl", _between_tokens(steps, batch, {r["request_id"] for r in served})),
        **_spread(
            "tpot",
            [
                (r["finished_s"] - r["first_token_s"]) / (r["output_tokens"] - 1)
                for r in served
                if r["output_tokens"] > 1
            ],
        ),
        **_spread("latency", [r["finished_s"] - r["arrival_s"] for r in served]),
        "forward_passes": len(steps),
        "pass_requests_mean": sum(r["requests"] * r["duration_s"] for r in steps) / time,
        "kv_block_utilization_mean": weighted("kv_blocks_used", 1),
        "kv_block_utilization_peak": max(r["kv_blocks_used"] / r["kv_blocks_total"] for r in steps),
        "kv_bytes_peak": max(r["kv_blocks_used"] for r in steps)
        * run.facts["engine"]["block_bytes"],
        "kv_token_utilization_mean": weighted("kv_tokens_used", run.block_size),
        # Runs of models with several KV groups.
        **dict.fromkeys(OF_GROUPS, math.nan),
        "preempted_bytes_mean": fmean(row["kv_bytes"] for row in lost),
        "preemptions": len(lost),
        "most_preemptions": max(Counter(row["request_id"] for row in lost).values(), default=0),
        "preemption_wait_longest_s": _longest_wait_s(back),
        "recomputed_tokens": sum(row["recomputed_tokens"] for row in steps),
        "preemption_wait_mean_s": fmean(row["wait_s"] for row in back),
        "resume_overhead_gross_s": resuming + out,
        "resume_overhead_as_published_s": resuming
        + sum(r["end_s"] - r["start_s"] for r in kv if r["direction"] == "out"),
        "swap_out_s": out,
        "swap_in_s": into,
        "rebuild_s": sum(r["rebuild_s"] for r in transfers if r["kind"] == "activations"),
        "save_s": 0,
        "swapped_bytes": sum(row["bytes"] for row in kv),
        "host_block_utilization_peak": max(pool, default=math.nan),
        "recompute_fallbacks": sum(1 for row in lost if row["refused"]),
        **_of_prefix_cache(run, repeat, steps, batch, lost, back),
        **_of_offloading(steps, batch, jobs, back),
        "draft_acceptance_rate": _accepted(batch),
        "aborted_requests": len(requests) - len(served),
        "stalled_passes": sum(1 for row in steps if row["stalled"]),
        "stall_time_s": stall,
    }


def _of_prefix_cache(
    run: Records,
    repeat: int,
    steps: list[dict[str, Any]],
    batch: list[dict[str, Any]],
    lost: list[dict[str, Any]],
    back: list[dict[str, Any]],
) -> dict[str, float]:
    hits, own = (_total(batch, column) for column in ("hit_tokens", "own_hit_tokens"))
    again = [row for row in back if row["policy"] == "recompute"]
    tokens = sum(row["tokens"] for row in again)
    result = sum(min(row["hit_tokens"], row["tokens"]) for row in again)
    return {
        "lost_tokens": sum(row["tokens"] for row in lost if row["policy"] == "recompute"),
        "prefix_cache_hit_rate": hits / (hits + _total(steps, "prefill_tokens")),
        "own_hit_tokens": own,
        "other_hit_tokens": hits - own,
        "lost_tokens_found_share": result / tokens if tokens else math.nan,
        "prefix_cache_evictions": sum(
            1 for row in rows_of(run.evictions) if row["repeat"] == repeat
        ),
    }


def _of_offloading(
    steps: list[dict[str, Any]],
    batch: list[dict[str, Any]],
    jobs: list[dict[str, Any]],
    back: list[dict[str, Any]],
) -> dict[str, float]:
    """Sums over the jobs of vLLM's offloading, computed job by job."""
    out, into = ([row for row in jobs if row["direction"] == way] for way in ("out", "in"))
    starts = {row["step"]: row["start_s"] for row in steps}
    begun = {(row["request_id"], row["step"]) for row in batch if row["loaded_tokens"]}
    waits = 0.0
    for row in into:
        own = [step for name, step in begun if name == row["request_id"] and step >= row["step"]]
        waits += starts[min(own)] - row["ordered_s"] if own else 0.0
    tails = [r["recomputed_tokens"] for r in back if (r["request_id"], r["step"]) in begun]
    return {
        "offload_stored_bytes": _total(out, "bytes"),
        "offload_unused_bytes": sum(
            row["bytes"] / row["blocks"] * (row["blocks"] - row["loaded_blocks"]) for row in out
        ),
        "offload_loaded_bytes": _total(into, "bytes"),
        "offload_store_s": _total(out, "copy_s"),
        "offload_load_s": _total(into, "copy_s"),
        "offload_tail_tokens": sum(tails),
        "offload_wait_s": waits,
        "offload_idle_s": _total(steps, "load_wait_s"),
        "offload_awaited_stores": sum(1 for row in out if not math.isnan(row["awaited_step"])),
    }


def _longest_wait_s(back: list[dict[str, Any]]) -> float:
    waits: dict[str, float] = defaultdict(float)
    for row in back:
        waits[row["request_id"]] += row["wait_s"]
    return max(waits.values(), default=math.nan)


def _total(rows: list[dict[str, Any]], column: str) -> float:
    return sum(row[column] for row in rows)


def _accepted(batch: list[dict[str, Any]]) -> float:
    rows = [row for row in batch if row["draft_tokens"]]
    return sum(row["accepted_tokens"] / _total(rows, "draft_tokens") for row in rows) or math.nan


def _between_tokens(
    steps: list[dict[str, Any]], batch: list[dict[str, Any]], served: set[str]
) -> list[float]:
    ends = {row["step"]: row["start_s"] + row["duration_s"] for row in steps}
    times: dict[str, list[float]] = defaultdict(list)
    for row in sorted(batch, key=lambda row: row["step"]):
        if row["sampled_tokens"] and row["request_id"] in served:
            times[row["request_id"]].append(ends[row["step"]])
    return [b - a for of in times.values() for a, b in pairwise(of)]


def _stall_s(run: Records, repeat: int) -> float:
    """Beyond the median of the kind in all repeats."""

    def kind(row: dict[str, Any]) -> tuple[Any, ...]:
        sizes = (row["prefill_tokens"], row["decode_tokens"], row["kv_tokens_used"])
        shape = tuple(int(size).bit_length() for size in sizes)
        return *shape, row["preempted_requests"] > 0, row["resumed_requests"] > 0

    rows = rows_of(run.steps)
    durations: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        durations[kind(row)].append(row["duration_s"])
    return sum(
        row["duration_s"] - median(durations[kind(row)])
        for row in rows
        if row["stalled"] and row["repeat"] == repeat
    )


def _spread(name: str, values: list[float]) -> dict[str, float]:
    """Mean, median and 99th percentile, between the two values it lies between."""
    ordered = sorted(values)

    def percentile(q: float) -> float:
        place = q * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    result = {"mean": fmean(values), "p50": percentile(0.5), "p99": percentile(0.99)}
    return {f"{name}_{of}_s": value for of, value in result.items()}


def test_every_metric_equals_a_count_over_the_rows(run: Records) -> None:
    numbers = sorted(set(run.steps["repeat"]))
    for number, repeat in zip(numbers, run.repeats(), strict=True):
        result = {metric.name: metric.of(repeat) for metric in METRICS}
        expected = by_rows(run, number)  # of packages, too, which may not be here
        assert result == pytest.approx(
            {name: expected[name] for name in result}, rel=1e-9, nan_ok=True
        )
        assert np.isfinite([*result.values()]).mean() > 0.8
