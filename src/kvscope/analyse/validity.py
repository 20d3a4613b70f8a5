"""May a run be believed? If not, why: reasons by name, each with the figures behind it."""

from collections.abc import Iterable
from typing import Any

from kvscope.analyse.metrics import makespan_s, stall_time_s
from kvscope.analyse.precision import disturbed_too_often, imprecise, with_disturbance
from kvscope.analyse.reason import Reason
from kvscope.analyse.records import Records
from kvscope.analyse.statistics import coefficient_of_variation
from kvscope.oracle import VIOLATED, Verdict
from kvscope.plan.repeats import MINIMUM_REPEATS
from kvscope.runfile import COMPLETE, IMPORTED_FROM

# Makespans that vary more than this (standard deviation over mean) are unstable.
MAXIMUM_VARIATION = 0.10
# A repeat that lost more than this share of its makespan in stalls is stalled.
MAXIMUM_STALL_SHARE = 0.05


def warm_up(facts: dict[str, Any]) -> list[Reason]:
    """Warm-up met every shape class that was measured."""
    found = facts.get("warmup", {})
    if not found.get("passes"):
        return [Reason("no_warm_up", "nothing ran before the measured part")]
    missed = found.get("uncovered_classes", [])
    return [Reason("warm_up_incomplete", f"classes {', '.join(missed)}")] if missed else []


def repeats(facts: dict[str, Any], records: Records) -> list[Reason]:
    """Enough repeats, undisturbed, alike, and the throughput as precise as was asked for."""
    makespans = [makespan_s(repeat) for repeat in records.repeats()]
    reasons = []
    if len(makespans) < MINIMUM_REPEATS:
        detail = f"{len(makespans)}, at least {MINIMUM_REPEATS} are needed"
        reasons.append(Reason("too_few_repeats", detail))
    variation = coefficient_of_variation(makespans)
    if variation > MAXIMUM_VARIATION:
        detail = f"makespan varies by {variation:.0%}, at most {MAXIMUM_VARIATION:.0%}"
        reasons.append(Reason("unstable", with_disturbance(detail, facts)))
    return [*reasons, *imprecise(facts, records), *disturbed_too_often(facts, records)]


def stalls(facts: dict[str, Any], records: Records) -> list[Reason]:
    """No repeat lost much of its time in stalls."""
    reasons = []
    for repeat in records.repeats():
        share = stall_time_s(repeat) / makespan_s(repeat)
        if share > MAXIMUM_STALL_SHARE:
            number = repeat.numbers[0]
            detail = f"repeat {number}: {share:.0%} of the makespan"
            reasons.append(Reason("stalled", with_disturbance(detail, facts)))
    return reasons


def lost_trace(facts: dict[str, Any]) -> list[Reason]:
    """A profiler that was used brought its trace home."""
    profiler = facts.get("profiler", {})
    if profiler.get("used") == "nsys" and profiler.get("reason"):
        return [Reason("profiler_lost_events", profiler["reason"])]
    return []


def violated(verdicts: Iterable[Verdict]) -> list[Reason]:
    """No oracle is violated."""
    return [
        Reason(found.name, f"{found.violations} ({found.first})")
        for found in verdicts
        if found.state == VIOLATED
    ]


def reasons_against(
    facts: dict[str, Any], records: Records, verdicts: Iterable[Verdict]
) -> list[Reason]:
    """Everything that speaks against a run; empty if it is valid.

    An imported run is judged by what it holds, its passes: it has neither requests nor warm-up.
    """
    if facts["status"] != COMPLETE:
        return [Reason("failed", facts.get("reason") or "unknown")]
    found = violated(verdicts)
    if len(records.steps):  # else a trace of kernels alone
        found += [*repeats(facts, records), *stalls(facts, records)]
    if IMPORTED_FROM not in facts:
        found += [*warm_up(facts), *lost_trace(facts)]
    return found
