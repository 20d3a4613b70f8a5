"""The step timelines of a page: compact columns of numbers, one set a repeat."""

from typing import Any

import pandas as pd

from kvscope.actions import Action, action
from kvscope.report.data import Run, StudyData
from kvscope.report.thin import merged_passes, thin

# A page of more than this opens and scrolls slowly; what is left out is said on the page.
MOST_EXPERIMENTS = 60
MOST_PASSES_A_REPEAT = 4000
MOST_PASSES_A_PAGE = 160_000
MOST_EVENTS_A_REPEAT = 4000
MICROSECONDS = 1e6

Columns = dict[str, list[Any]]


def timelines(study: StudyData) -> dict[str, dict[str, Any]]:
    """Timelines by experiment id, of the first experiments that a page can hold."""
    made: dict[str, dict[str, Any]] = {}
    passes = 0
    for run in study.complete[:MOST_EXPERIMENTS]:
        if passes >= MOST_PASSES_A_PAGE or not run.has_passes:
            continue
        made[run.id] = timeline(run)
        passes += sum(len(repeat["step"]) for repeat in made[run.id]["repeats"])
    return made


def timeline(run: Run) -> dict[str, Any]:
    """Everything the page draws of one experiment."""
    return {
        "id": run.id,
        "label": run.label,
        "block_size": run.block_size,
        "repeats": [_repeat(run, number) for number in run.repeats],
    }


def _repeat(run: Run, number: int) -> dict[str, Any]:
    steps = run.steps(number)
    passes = thin(steps, MOST_PASSES_A_REPEAT)
    return {
        "repeat": number,
        "passes": len(steps),
        "merged": merged_passes(len(steps), MOST_PASSES_A_REPEAT),
        "stalled_passes": int(steps["stalled"].sum()),
        "blocks_total": int(steps["kv_blocks_total"].max()),
        "host_total": int(steps["host_blocks_total"].max()),
        "step": passes["step"].tolist(),
        "start_us": _microseconds(passes["start_s"]),
        "end_us": _microseconds(passes["end_s"]),
        "prefill": _short(passes["prefill_tokens"]),
        "decode": _short(passes["decode_tokens"]),
        "requests": passes["requests"].tolist(),
        "waiting": passes["waiting_requests"].tolist(),
        "blocks": passes["kv_blocks_used"].tolist(),
        "tokens": passes["kv_tokens_used"].tolist(),
        "host": passes["host_blocks_used"].tolist() if steps["host_blocks_total"].any() else [],
        "stalled": [row for row, stalled in enumerate(passes["stalled"]) if stalled],
        **_events(run.preemptions(number)),
    }


def _events(preemptions: pd.DataFrame) -> dict[str, Any]:
    """Preemptions and resumptions as [pass, request, what became of its tokens]."""
    of = ("step", "request_id")
    kept = preemptions.head(MOST_EVENTS_A_REPEAT)
    preempted = kept[kept["event"] == "preempt"]
    resumed = kept[kept["event"] == "resume"].fillna({"recomputed_tokens": 0})
    return {
        "preemptions": int((preemptions["event"] == "preempt").sum()),
        "resumptions": int((preemptions["event"] == "resume").sum()),
        "preempted": [
            [step, request, f"{tokens} tokens {action(name).lost}"]
            for step, request, tokens, name in zip(
                *(preempted[key] for key in (*of, "tokens", "policy")), strict=True
            )
        ],
        "resumed": [
            [step, request, _resumed(action(name), int(tokens))]
            for step, request, tokens, name in zip(
                *(resumed[key] for key in (*of, "recomputed_tokens", "policy")), strict=True
            )
        ],
    }


def _resumed(done: Action, recomputed_tokens: int) -> str:
    return done.resumed if done.keeps else f"{recomputed_tokens} tokens {done.resumed}"


def _microseconds(seconds: pd.Series) -> list[int]:
    whole: list[int] = (seconds * MICROSECONDS).round().astype("int64").tolist()
    return whole


def _short(values: pd.Series) -> list[float]:
    """Whole numbers without '.0', means of merged passes with one decimal."""
    return [int(v) if v == int(v) else round(float(v), 1) for v in values]
