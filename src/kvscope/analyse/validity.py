"""May a run be believed? If not, why: reasons by name, each with the figures behind it."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvscope.analyse.metrics import makespan_s, stall_time_s
from kvscope.analyse.records import Records
from kvscope.analyse.statistics import coefficient_of_variation

MINIMUM_REPEATS = 3
# Makespans that vary more than this (standard deviation over mean) are unstable.
MAXIMUM_VARIATION = 0.10
# A repeat that lost more than this share of its makespan in stalls is stalled.
MAXIMUM_STALL_SHARE = 0.05


@dataclass(frozen=True)
class Reason:
    """Why a run may not be believed."""

    name: str
    detail: str


def conservation(records: Records) -> list[Reason]:
    """Scheduled tokens = prompt + output tokens - requests + recomputed tokens, every repeat.

    A request's last output token is never computed, hence "- requests".
    """
    reasons = []
    for number, repeat in enumerate(records.repeats()):
        requests, resumed = repeat.requests, repeat.preemptions
        scheduled = int(repeat.steps["scheduled_tokens"].sum())
        due = int(requests["prompt_tokens"].sum() + requests["output_tokens"].sum())
        expected = due - len(requests) + int(resumed["recomputed_tokens"].sum())
        if scheduled != expected:
            detail = f"repeat {number}: {scheduled} tokens scheduled, {expected} expected"
            reasons.append(Reason("tokens_not_conserved", detail))
        rows = int(repeat.batch["scheduled_tokens"].sum())
        if rows != scheduled:
            detail = f"repeat {number}: batch has {rows} tokens, steps {scheduled}"
            reasons.append(Reason("tokens_not_conserved", detail))
    return reasons


def missing_tokens(records: Records) -> list[Reason]:
    """Every repeat gave every request the output tokens that were asked for."""
    asked = records.workload.set_index("request_id")["output_tokens"]
    reasons = []
    for number, repeat in enumerate(records.repeats()):
        given = repeat.requests.set_index("request_id")["output_tokens"]
        wrong = (given.reindex(asked.index).fillna(0) != asked).sum()
        if wrong:
            reasons.append(Reason("tokens_missing", f"repeat {number}: {wrong} requests"))
    return reasons


def differing_outputs(requests: pd.DataFrame) -> list[Reason]:
    """Every repeat gave every request the same tokens."""
    differing = int((requests.groupby("request_id")["output_sha256"].nunique() > 1).sum())
    return [Reason("outputs_differ", f"{differing} requests")] if differing else []


def warm_up(facts: dict[str, Any]) -> list[Reason]:
    """Warm-up met every shape class that was measured."""
    found = facts.get("warmup", {})
    if not found.get("passes"):
        return [Reason("no_warm_up", "nothing ran before the measured part")]
    missed = found.get("uncovered_classes", [])
    return [Reason("warm_up_incomplete", f"classes {', '.join(missed)}")] if missed else []


def repeats(records: Records) -> list[Reason]:
    """Enough repeats, and alike."""
    makespans = [makespan_s(repeat) for repeat in records.repeats()]
    reasons = []
    if len(makespans) < MINIMUM_REPEATS:
        detail = f"{len(makespans)}, at least {MINIMUM_REPEATS} are needed"
        reasons.append(Reason("too_few_repeats", detail))
    variation = coefficient_of_variation(makespans)
    if variation > MAXIMUM_VARIATION:
        detail = f"makespan varies by {variation:.0%}, at most {MAXIMUM_VARIATION:.0%}"
        reasons.append(Reason("unstable", detail))
    return reasons


def stalls(records: Records) -> list[Reason]:
    """No repeat lost much of its time in stalls."""
    reasons = []
    for number, repeat in enumerate(records.repeats()):
        share = stall_time_s(repeat) / makespan_s(repeat)
        if share > MAXIMUM_STALL_SHARE:
            detail = f"repeat {number}: {share:.0%} of the makespan"
            reasons.append(Reason("stalled", detail))
    return reasons


def lost_trace(facts: dict[str, Any]) -> list[Reason]:
    """A profiler that was used brought its trace home."""
    profiler = facts.get("profiler", {})
    if profiler.get("used") == "nsys" and profiler.get("reason"):
        return [Reason("profiler_lost_events", profiler["reason"])]
    return []


def reasons_against(facts: dict[str, Any], records: Records) -> list[Reason]:
    """Everything that speaks against a run; empty if it is valid."""
    if facts["status"] != "complete":
        return [Reason("failed", facts.get("reason") or "unknown")]
    return [
        *conservation(records),
        *missing_tokens(records),
        *differing_outputs(records.requests),
        *warm_up(facts),
        *repeats(records),
        *stalls(records),
        *lost_trace(facts),
    ]
