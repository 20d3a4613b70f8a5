"""A published log of vLLM 0.4.2 as a run directory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvscope.api.collecting import importer
from kvscope.api.errors import BadInput
from kvscope.api.tables import actions, evidence, runfile, tables
from kvscope.api.tables import passes as phases
from kvscope_paper.unboxkv.log import Log, LoggedPass, read_log
from kvscope_paper.unboxkv.log_batches import CHUNKED, DEFAULT, MIXED, Cache, Lost, Pass, passes

KIND = "unboxkv"
STALL_MS = 500.0  # of the host in one pass; the longest one without a stall takes less
USUAL_TIMES = 4

FAULTS = (
    "the warm-up is cut off; instants count from the first interval, which includes tokenisation",
    "usages were published in percent with one decimal, as after the pass; kv_tokens_used is as "
    "after the pass, too, or null where it is not known which request each pass computed",
    "schedule_s and forward_s are not known, nor which tokens came out",
    "arrivals are when vLLM was handed a request, one after the other",
)
STALLS = "{} passes stalled; chunked runs have first-use stalls of the host of about 1.55 s"
NO_BATCH = (
    "which request each pass computed is not known: the tokens of pass {} do not follow from the "
    "requests' lengths, the budget and the blocks by the rules of vLLM 0.4.2"
)
PREEMPTED = "{} preemptions, {} tokens computed again by the batches' totals; which requests they "
FOLLOW = "were follows from the rules of vLLM 0.4.2, with which every pass agrees"
UNKNOWN = "were is not known"


def import_log(paths: Sequence[Path], out: Path, _: str | None = None) -> str:
    """Write a published log as a run directory; returns a summary of one line.

    Raises BadInput if there are several files, or the file is no such log or is cut.
    """
    if len(paths) != 1:
        raise BadInput(f"import {KIND}: takes one log, not {len(paths)} files")
    (path,) = paths
    log = read_log(path)
    batches, mismatch = _scheduled(log)
    steps = steps_of(log, batches)
    preemptions = preemptions_of(batches, steps, log)
    frames = {
        tables.REQUESTS: requests_of(log, preemptions),
        tables.STEPS: steps,
        tables.PREEMPTIONS: preemptions,
    }
    importer.write_tables(out, frames | ({tables.BATCH: batch_of(batches)} if batches else {}))
    stalls = int(steps["stalled"].sum())
    runfile.write_run(out, _record(path, log, stalls, mismatch, out))
    tokens = int(steps["scheduled_tokens"].sum())
    return (
        f"{len(steps):,} passes, {tokens:,} tokens, of which {log.recomputed_tokens:,} computed "
        f"again; {stalls} stalls"
    )


def strategy_of(log: Log) -> str:
    """Its batching: vLLM's default, mixed, or chunked."""
    if log.setting("enable_chunked_prefill") == "True":
        return CHUNKED
    return MIXED if log.setting("enable_mixed_batch") == "True" else DEFAULT


def _scheduled(log: Log) -> tuple[list[Pass], int | None]:
    """Tokens that every pass computed, or nothing and the first pass that does not follow."""
    cache = Cache(log.gpu_blocks, log.block_size)
    scheduler = passes(log.lengths, strategy_of(log), log.token_budget, cache, log.most_requests)
    batches = []
    for number, logged in enumerate(log.passes, 1):
        scheduled = next(scheduler, None)
        if scheduled is None or scheduled.tokens != logged.tokens:
            return [], number
        if len(scheduled.lost) != logged.preempted:
            return [], number
        batches.append(scheduled)
    return (batches, None) if next(scheduler, None) is None else ([], len(log.passes) + 1)


def steps_of(log: Log, scheduled: list[Pass]) -> pd.DataFrame:
    """The `steps` table."""
    passes = log.passes
    duration_s = np.array([pass_.duration_ms or 0.0 for pass_ in passes]) / 1e3
    ends_s = np.cumsum([pass_.interval_ms or 0.0 for pass_ in passes]) / 1e3
    tokens = np.array([pass_.tokens for pass_ in passes])
    prefill = _prefill_tokens(log, scheduled)
    decode = tokens - prefill
    phase = np.where(
        decode == 0, phases.PREFILL, np.where(prefill == 0, phases.DECODE, phases.MIXED)
    )
    counts = [len(pass_.rows) for pass_ in scheduled] or [pass_.running for pass_ in passes]
    sampled = [sum(row.sampled for row in pass_.rows) for pass_ in scheduled] or counts
    recomputed = [sum(row.recomputed for row in pass_.rows) for pass_ in scheduled]
    resumed = [sum(row.resumed for row in pass_.rows) for pass_ in scheduled]
    used = np.array([pass_.kv_percent for pass_ in passes]) / 100 * log.gpu_blocks
    host = np.array([pass_.host_percent for pass_ in passes]) / 100 * log.host_blocks
    return pd.DataFrame(
        {
            "repeat": 0,
            "step": np.arange(len(passes)),
            "phase": phase,
            "start_s": ends_s - duration_s,
            "duration_s": duration_s,
            "schedule_s": np.nan,
            "forward_s": np.nan,
            "scheduled_tokens": tokens,
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "recomputed_tokens": recomputed or recomputed_by_pass(log),
            "sampled_tokens": sampled,
            "requests": counts,
            "resumed_requests": resumed or [pass_.resumed for pass_ in passes],
            "preempted_requests": [pass_.preempted for pass_ in passes],
            "waiting_requests": [pass_.pending + pass_.swapped for pass_ in passes],
            "kv_blocks_used": np.rint(used).astype(int),
            "kv_blocks_total": log.gpu_blocks,
            "kv_tokens_used": [pass_.resident_tokens for pass_ in scheduled] or np.nan,
            "host_blocks_used": np.rint(host).astype(int),
            "host_blocks_total": log.host_blocks,
            "stalled": host_stalls(passes),
            "time_source": importer.PUBLISHED,
        }
    )


def recomputed_by_pass(log: Log) -> list[int]:
    """Recomputed tokens of each pass, which add up to those of the whole log.

    A chunked prefill logs a resumed request's tokens again in each pass until its prompt is done:
    they count in the first of these. Where the lines do not add up to what the batches hold beyond
    the requests' lengths, all of it counts in the first pass that has a line.
    """
    logged = [pass_.recomputed_tokens for pass_ in log.passes]
    before = [0, *logged[:-1]]
    recomputed = [0 if now == last else now for now, last in zip(logged, before, strict=True)]
    excess = log.recomputed_tokens
    if sum(recomputed) == excess:
        return recomputed
    first = next((step for step, tokens in enumerate(logged) if tokens), 0)
    return [excess if step == first else 0 for step in range(len(recomputed))]


def host_stalls(passes: Sequence[LoggedPass]) -> list[bool]:
    """Mask of the passes that the host took far too long to launch.

    The host's time is in the log, and a stall in it: few of a log's passes are alike, so that the
    rule for measured runs (`kvscope.tables.stalls`) would find none. Where the log has no such
    times, the duration counts, beside the median of all passes.
    """
    usual_ms = float(np.median([pass_.duration_ms or 0.0 for pass_ in passes]))
    least_ms = STALL_MS if len(passes) > 1 else math.inf
    return [
        pass_.forward_ms > STALL_MS
        if pass_.forward_ms is not None
        else (pass_.duration_ms or 0.0) > max(least_ms, USUAL_TIMES * usual_ms)
        for pass_ in passes
    ]


def _prefill_tokens(log: Log, scheduled: list[Pass]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Tokens of prompts in each pass; if rows are not known, all beyond one for each request."""
    if scheduled:
        sums = [sum(row.tokens for row in pass_.rows if not row.decodes) for pass_ in scheduled]
        return np.array(sums, dtype=np.int64)
    tokens = np.array([pass_.tokens or 0 for pass_ in log.passes], dtype=np.int64)
    running = np.array([max(pass_.running, 1) for pass_ in log.passes])
    return np.where(tokens > running, tokens, 0)


def batch_of(scheduled: list[Pass]) -> pd.DataFrame:
    """The `batch` table."""
    return pd.DataFrame(
        [
            {
                "repeat": 0,
                "step": step,
                "request_id": str(row.request),
                "phase": phases.DECODE if row.decodes else phases.PREFILL,
                "scheduled_tokens": row.tokens,
                "recomputed_tokens": row.recomputed,
                "context_tokens": row.context,
                "sampled_tokens": row.sampled,
                "resumed": row.resumed,
            }
            for step, pass_ in enumerate(scheduled)
            for row in pass_.rows
        ]
    )


def preemptions_of(scheduled: list[Pass], steps: pd.DataFrame, log: Log) -> pd.DataFrame:
    """The `preemptions` table; empty if rows are not known."""
    start_s = steps["start_s"].to_numpy(float)
    rows: list[dict[str, Any]] = []
    lost: dict[int, tuple[Lost, float]] = {}  # by request, until it is scheduled again
    for step, pass_ in enumerate(scheduled):
        usual = {
            "repeat": 0,
            "step": step,
            "time_s": start_s[step],
            "policy": actions.RECOMPUTE.name,
        }
        for row in pass_.rows:
            if row.request in lost:
                before, since_s = lost.pop(row.request)
                resumption = {
                    "event": "resume",
                    "blocks": -(-(row.context + row.tokens) // log.block_size),
                    "wait_s": start_s[step] - since_s,
                    "recomputed_tokens": before.tokens,
                }
                rows.append(usual | _preempted(before) | resumption)
        for victim in pass_.lost:
            lost[victim.request] = victim, start_s[step]
            rows.append(usual | _preempted(victim) | {"event": "preempt"})
    frame = pd.DataFrame(rows, columns=tables.PREEMPTIONS.names)
    return frame.assign(time_source=importer.PUBLISHED, refused=False)


def _preempted(lost: Lost) -> dict[str, Any]:
    return {"request_id": str(lost.request), "blocks": lost.blocks, "tokens": lost.tokens}


def requests_of(log: Log, preemptions: pd.DataFrame) -> pd.DataFrame:
    """The `requests` table; requests are numbered from 1, as they were handed over.

    The log numbers them on from those of the warm-up.
    """
    if len(log.requests) != len(log.lengths):
        return tables.REQUESTS.empty()
    counts = preemptions.query("event == 'preempt'")["request_id"].value_counts()
    origin_s = min(request["arrival_time"] for request in log.requests.values())
    rows = []
    for number, (name, (prompt, output)) in enumerate(
        zip(sorted(log.requests), log.lengths, strict=True), 1
    ):
        times = {key: value - origin_s for key, value in log.requests[name].items()}
        rows.append(
            {
                "repeat": 0,
                "request_id": str(number),
                "arrival_s": times["arrival_time"],
                "prompt_tokens": prompt,
                "output_tokens": output,
                "aborted": False,
                "first_scheduled_s": times["first_scheduled_time"],
                "first_token_s": times["first_token_time"],
                "finished_s": times["finished_time"],
                "preemptions": int(counts.get(str(number), 0)),
                "output_sha256": "",
            }
        )
    return pd.DataFrame(rows)


def _evidence(log: Log, mismatch: int | None) -> tuple[str, ...]:
    is_complete = mismatch is None and len(log.requests) == len(log.lengths)
    return (evidence.PASSES, evidence.ORDER) if is_complete else ()


def _record(path: Path, log: Log, stalls: int, mismatch: int | None, out: Path) -> dict[str, Any]:
    """Entries of run.json for an import: its source, its settings and its faults."""
    duration_s = sum(pass_.interval_ms or 0.0 for pass_ in log.passes) / 1e3
    faults = list(FAULTS)
    if stalls:
        faults.append(STALLS.format(stalls))
    preempted = sum(pass_.preempted for pass_ in log.passes)
    if preempted or log.recomputed_tokens:
        words = PREEMPTED.format(preempted, log.recomputed_tokens)
        faults.append(words + (FOLLOW if mismatch is None else UNKNOWN))
    if mismatch is not None:
        faults.append(NO_BATCH.format(mismatch))
    return {
        **importer.provenance(KIND, [path], evidence=_evidence(log, mismatch)),
        "faults": faults,
        "published_settings": log.settings,
        "published_totals": log.totals,
        "clock": importer.imported_clock(duration_s),
        "engine": {
            "kv_blocks_total": log.gpu_blocks,
            "block_size": log.block_size,
        },
        "files": runfile.file_records(out),
    }


IMPORTER = importer.Importer(import_log)
