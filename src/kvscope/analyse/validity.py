"""The validity of a run: the reasons why it is not valid, each with the figures behind it."""

from collections.abc import Iterable
from typing import Any

from kvscope.analyse.metrics import makespan_s, stall_time_s
from kvscope.analyse.precision import add_disturbance, check_disturbance, check_precision
from kvscope.analyse.reason import (
    FAILED,
    MAXIMUM_STALL_SHARE,
    MAXIMUM_VARIATION,
    NO_WARM_UP,
    PROFILER_LOST_EVENTS,
    STALLED,
    TOO_FEW_REPEATS,
    UNSTABLE,
    WARM_UP_INCOMPLETE,
    Reason,
)
from kvscope.analyse.records import Records, sharings
from kvscope.analyse.statistics import coefficient_of_variation
from kvscope.oracle import VIOLATED, Verdict
from kvscope.plan.repeats import MINIMUM_REPEATS
from kvscope.runfile import COMPLETE, IMPORTED_FROM
from kvscope.runschema import MODELED


def check_warm_up(facts: dict[str, Any]) -> list[Reason]:
    """NO_WARM_UP, or WARM_UP_INCOMPLETE if warm-up missed a measured shape class."""
    found = facts.get("warmup", {})
    if not found.get("passes"):
        return [NO_WARM_UP.with_detail("nothing ran before the measured part")]
    missed = found.get("uncovered_classes", [])
    return [WARM_UP_INCOMPLETE.with_detail(f"classes {', '.join(missed)}")] if missed else []


def check_repeats(records: Records) -> list[Reason]:
    """Reasons if repeats are too few, unstable, disturbed, or less precise than requested.

    Beside neighbours of its pack a run may vary: that is what sharing a node costs.
    """
    makespans = [makespan_s(repeat) for repeat in records.valid_repeats()]
    reasons = []
    if len(makespans) < MINIMUM_REPEATS:
        detail = f"{len(makespans)}, at least {MINIMUM_REPEATS} are needed"
        reasons.append(TOO_FEW_REPEATS.with_detail(detail))
    variation = coefficient_of_variation(makespans)
    if variation > MAXIMUM_VARIATION and not sharings(records.facts):
        detail = f"makespan varies by {variation:.0%}, at most {MAXIMUM_VARIATION:.0%}"
        reasons.append(UNSTABLE.with_detail(add_disturbance(detail, records.facts)))
    return [*reasons, *check_precision(records), *check_disturbance(records)]


def check_stalls(records: Records) -> list[Reason]:
    """STALLED for each repeat that lost more than MAXIMUM_STALL_SHARE of its makespan.

    Not of a repeat that neighbours of its pack slowed down: its passes waited for theirs.
    """
    reasons = []
    shared = {entry["repeat"] for entry in sharings(records.facts)}
    for repeat in records.valid_repeats():
        share = stall_time_s(repeat) / makespan_s(repeat)
        if share > MAXIMUM_STALL_SHARE and repeat.repeat not in shared:
            detail = f"repeat {repeat.repeat}: {share:.0%} of the makespan"
            reasons.append(STALLED.with_detail(add_disturbance(detail, records.facts)))
    return reasons


def check_profiler(facts: dict[str, Any]) -> list[Reason]:
    """PROFILER_LOST_EVENTS if a profiled run has no complete trace."""
    profiler = facts.get("profiler", {})
    if profiler.get("used") == "nsys" and profiler.get("reason"):
        return [PROFILER_LOST_EVENTS.with_detail(profiler["reason"])]
    return []


def check_oracles(verdicts: Iterable[Verdict]) -> list[Reason]:
    """One reason for each violated oracle."""
    return [
        Reason(found.name, f"{found.violations} ({found.first})")
        for found in verdicts
        if found.state == VIOLATED
    ]


def find_reasons(records: Records, verdicts: Iterable[Verdict]) -> list[Reason]:
    """All reasons why a run is not valid; empty if it is valid.

    Imported runs have neither requests nor warm-up, and are judged by their passes.
    Modeled times are the same in every repeat and need no warm-up.
    """
    facts = records.facts
    if facts["status"] != COMPLETE:
        return [FAILED.with_detail(facts.get("reason") or "unknown")]
    found = check_oracles(verdicts)
    if facts.get("time_source") == MODELED:
        return found
    if len(records.steps):  # else a trace of kernels alone
        found += [*check_repeats(records), *check_stalls(records)]
    if IMPORTED_FROM not in facts:
        found += [*check_warm_up(facts), *check_profiler(facts)]
    return found
