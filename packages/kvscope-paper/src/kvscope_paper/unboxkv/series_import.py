"""Published series as a run directory: steps and preemptions derived, their faults named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvscope.api.collecting import importer, stalls
from kvscope.api.errors import BadInput
from kvscope.api.runs import pass_durations
from kvscope.api.tables import actions, copies, evidence, runfile, tables
from kvscope_paper.arrays import Floats, Int64s
from kvscope_paper.unboxkv import sizes
from kvscope_paper.unboxkv.series_csv import read_series

KIND = "unboxkv-series"
UNKNOWN = "unknown"  # whose preemption it is
# Usages were published in percent with one decimal: a cache has so many distinct shares.
SHARES = 1000

FAULTS = (
    "no requests were published: the tables requests, batch and workload are empty, latencies and "
    "throughput are not known, and tokens cannot be checked for conservation",
    "no request ids were published: of preemptions and resumptions the request ('unknown'), its "
    "tokens and blocks (0), bytes and wait (null) are not known",
    "tokens of a pass are its throughput times its interval, less one for each request that a "
    "prefill pass admits (vLLM 0.4.2 counts its first output token too); both factors are rounded, "
    "so a prefill pass may be off by one token",
    "a pass is taken to prefill or to decode, never both, and to prefill if it counts more tokens "
    "than it has requests or admits any; chunked and mixed batching would be misread",
    f"usages were published in percent with one decimal, as after the pass: kv_blocks_* and "
    f"host_blocks_* count {SHARES}ths of the KV cache and of the host pool, not blocks",
    "block size and tokens in the cache are not known: block_size is 0 and kv_tokens_used null",
    "hardware, settings, warm-up and the time of day were not published with the series; instants "
    "count from the start of the first interval, which includes tokenisation",
)
FAULT_OF_SWAP = (
    "copy_s of transfers was not measured by the device: it is what the pass took beyond "
    "what its decode was due to take by the run's plain decode passes, their batch and the blocks "
    "in use, in equal parts where several requests share a pass"
)
FAULT_OF_SHARING = (
    "{shared} of the {all} passes that recompute also admitted new requests: their tokens are "
    "shared out by the number of requests, so their recomputed_tokens are estimates"
)


def import_series(paths: Sequence[Path], out: Path, series: str | None = None) -> str:
    """Write a published run's series as a run directory; BadInput if the files are no such series.

    `series` names the run where one file holds several. There is nothing to sum up.
    """
    rows = read_series(paths, series)
    steps = steps_of(rows)
    _check(rows, steps, ", ".join(map(str, paths)))
    frames = {
        tables.STEPS: steps,
        tables.PREEMPTIONS: preemptions_of(rows, steps),
        tables.TRANSFERS: transfers_of(rows, steps),
    }
    importer.write_tables(out, frames)
    runfile.write_run(out, _record(paths, series, rows, out))
    return ""


def _check(rows: pd.DataFrame, steps: pd.DataFrame, files: str) -> None:
    """BadInput if no run can have done what the series say together."""
    moves = int(moves_of(rows).abs().to_numpy().sum())
    if moves > sizes.MOST_MOVES:
        raise BadInput(f"{files}: {moves:,} requests come and go, {sizes.MOST_MOVES:,} at most")
    too_few = (steps["scheduled_tokens"] < 0).to_numpy()
    if too_few.any():
        number = int(too_few.argmax()) + 1
        raise BadInput(f"{files}: pass {number} did fewer tokens than it admitted requests")


def steps_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The `steps` table of a run's series."""
    now = rows.iloc[1:].reset_index(drop=True)
    moves = moves_of(rows)
    interval_s = np.diff(rows["elapsed_ms"]) / 1e3
    counted = np.rint(now["throughput"].to_numpy() * interval_s).astype(np.int64)
    running = now["running"].to_numpy(np.int64)
    prefills = (counted > running) | (moves["admitted"] > 0).to_numpy()
    scheduled = np.where(prefills, counted - moves["admitted"], counted)
    host_blocks = np.rint(now["host_percent"] * SHARES / 100).astype(int)
    steps = pd.DataFrame(
        {
            "repeat": 0,
            "step": np.arange(len(now)),
            "phase": np.where(prefills, "prefill", "decode"),
            "start_s": (now["elapsed_ms"] - now["duration_ms"]) / 1e3,
            "duration_s": now["duration_ms"] / 1e3,
            "schedule_s": np.nan,
            "forward_s": np.nan,
            "scheduled_tokens": scheduled,
            "prefill_tokens": np.where(prefills, scheduled, 0),
            "decode_tokens": np.where(prefills, 0, scheduled),
            "recomputed_tokens": np.where(prefills, _recomputed(scheduled, moves), 0),
            "sampled_tokens": np.where(prefills, moves["admitted"], scheduled),
            "requests": np.where(prefills, np.maximum(moves["admitted"], 1), running),
            "resumed_requests": now["resumed"].astype(int),
            "preempted_requests": moves["swapped_out"] + moves["lost"],
            "waiting_requests": (now["pending"] + now["swapped"]).astype(int),
            "kv_blocks_used": np.rint(now["kv_percent"] * SHARES / 100).astype(int),
            "kv_blocks_total": SHARES,
            "kv_tokens_used": np.nan,
            "host_blocks_used": host_blocks,
            "host_blocks_total": SHARES if host_blocks.any() else 0,
            "stalled": False,
            "time_source": importer.PUBLISHED,
        }
    )
    return steps.assign(stalled=stalls.find_stalls(steps))


def moves_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Requests that each pass swapped out, swapped in, lost, admitted, and recomputed.

    A request that begins to run was waiting or is swapped in; one that stops before its end waits
    again or is swapped out. One pass never does both: vLLM 0.4.2 admits only if nothing had to go.
    """
    counts = rows[["running", "left", "swapped", "resumed"]].fillna(0).astype(int)
    now, before = counts.iloc[1:].reset_index(drop=True), counts.iloc[:-1].reset_index(drop=True)
    swapped = now["swapped"] - before["swapped"]
    swapped_in = np.minimum(-swapped.clip(upper=0), now["resumed"])
    begun = now["running"] - before["left"] + swapped
    return pd.DataFrame(
        {
            "swapped_out": swapped.clip(lower=0),
            "swapped_in": swapped_in,
            "lost": -begun.clip(upper=0),
            "admitted": begun.clip(lower=0),
            "recomputed": now["resumed"] - swapped_in,
        }
    )


def _recomputed(scheduled: Int64s, moves: pd.DataFrame) -> Int64s:
    """Tokens of a prefill pass that were lost before: its own but each request's newest.

    New requests in the same pass are taken to be as long, on average, as those that recompute.
    """
    again = moves["recomputed"].to_numpy()
    share = again / np.maximum(np.maximum(moves["admitted"].to_numpy(), again), 1)
    tokens: Int64s = np.maximum(np.rint(scheduled * share).astype(np.int64) - again, 0)
    return tokens


def preemptions_of(rows: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The `preemptions` table of a run's series: a row a request, in the order of the passes."""
    moves = moves_of(rows)
    again = steps["recomputed_tokens"].to_numpy()
    out, lost, back, resumed = (
        moves[name].to_numpy() for name in ("swapped_out", "lost", "swapped_in", "recomputed")
    )
    parts = [
        _events(out, "preempt", actions.SWAP.name),
        _events(lost, "preempt", actions.RECOMPUTE.name),
        _events(back, "resume", actions.SWAP.name, recomputed_tokens=0),
        _events(
            resumed,
            "resume",
            actions.RECOMPUTE.name,
            recomputed_tokens=_whole_parts(again, resumed),
        ),
    ]
    return pd.concat(parts).sort_values("step", kind="stable", ignore_index=True)


def transfers_of(rows: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The `transfers` table of a run's series: a row a swapped request and direction."""
    moves, copied_s = moves_of(rows), _copy_s(steps)
    ways = {copies.OUT: moves["swapped_out"].to_numpy(), copies.IN: moves["swapped_in"].to_numpy()}
    parts = [
        pd.DataFrame(
            {
                "step": np.repeat(np.arange(len(counts)), counts),
                "direction": direction,
                "copy_s": _parts(copied_s, counts),
            }
        )
        for direction, counts in ways.items()
    ]
    constants: dict[str, Any] = {
        "repeat": 0,
        "kind": copies.KV,
        "blocks": 0,
        "clock": copies.LOG,
        "time_source": importer.PUBLISHED,
    }
    merged = pd.concat(parts).sort_values("step", kind="stable", ignore_index=True)
    merged = merged.assign(**constants)
    return merged.reindex(columns=tables.TRANSFERS.names)


def _events(counts: Int64s, event: str, policy: str, **known: Any) -> pd.DataFrame:
    """The rows of one event and policy; `counts` says how many each pass has."""
    row = {
        "repeat": 0,
        "step": np.repeat(np.arange(len(counts)), counts),
        "request_id": UNKNOWN,
        "event": event,
        "policy": policy,
        "refused": False,
        "blocks": 0,
        "tokens": 0,
        "time_source": importer.PUBLISHED,
    }
    nullable = dict.fromkeys(("time_s", "wait_s", "recomputed_tokens"), np.nan)
    return pd.DataFrame(row | nullable | known).astype(dict.fromkeys(nullable, float))


def _copy_s(steps: pd.DataFrame) -> Floats:
    """Seconds of each pass beyond its expected decode time; NaN unless it decodes only."""
    due = pass_durations.due
    beyond = steps["duration_s"] - due.decode_due_s(due.decode_passes(steps, tables.BATCH.empty()))
    return np.where(steps["phase"] == "decode", beyond, np.nan)


def _parts(totals: Floats, counts: Int64s) -> Floats:
    """Each pass's total in `counts` equal parts, all passes' parts in a row."""
    return np.repeat(totals / np.maximum(counts, 1), counts)


def _whole_parts(totals: Int64s, counts: Int64s) -> Int64s:
    """`_parts` in whole numbers that differ by 1 at most and add up to the total."""
    total, count = np.repeat(totals, counts), np.repeat(counts, counts)
    place: Int64s = np.arange(len(count)) - np.repeat(np.cumsum(counts) - counts, counts)
    return total * (place + 1) // count - total * place // count


def faults_of(rows: pd.DataFrame) -> list[str]:
    """Everything that a reader must know is missing from the tables, or derived."""
    moves = moves_of(rows)
    recomputing = moves["recomputed"] > 0
    shared = int((recomputing & (moves["admitted"] > moves["recomputed"])).sum())
    faults = list(FAULTS)
    if moves["swapped_out"].any():
        faults.append(FAULT_OF_SWAP)
    if shared:
        faults.append(FAULT_OF_SHARING.format(shared=shared, all=int(recomputing.sum())))
    return faults


def _record(
    paths: Sequence[Path], series: str | None, rows: pd.DataFrame, out: Path
) -> dict[str, Any]:
    """Entries of run.json for an import: its sources and faults, and no experiment."""
    duration_s = float(rows["elapsed_ms"].iloc[-1]) / 1e3
    return {
        **importer.provenance(KIND, paths, series, evidence=[evidence.STALLS]),
        "faults": faults_of(rows),
        "clock": importer.imported_clock(duration_s),
        "engine": {"kv_blocks_total": SHARES, "block_size": 0},
        "files": runfile.file_records(out),
    }


IMPORTER = importer.Importer(import_series, has_series=True)
