"""Checks of a run's precision: the throughput's interval, and the undisturbed repeats."""

import math
from typing import Any

from kvscope.analyse.metrics import BY_NAME
from kvscope.analyse.reason import DISTURBED, NOT_PRECISE, Reason
from kvscope.analyse.records import Records, disturbances, sharings
from kvscope.interval import half_width_share
from kvscope.plan.repeats import MINIMUM_REPEATS

# Disturbed repeats that are described; further ones are counted.
MOST_DESCRIBED = 3


def check_precision(records: Records) -> list[Reason]:
    """NOT_PRECISE if the throughput's interval is wider than `repeats.until` requests.

    The interval is computed from the tables, not read from run.json. What neighbours of the pack
    make it wider by is the experiment's.
    """
    until = records.facts.get("repeats", {}).get("until")
    if until is None or sharings(records.facts):
        return []
    throughput = BY_NAME["throughput_tokens_per_s"].of
    found = [throughput(repeat) for repeat in records.valid_repeats()]
    share = half_width_share(found)
    if share <= until:
        return []
    known = "throughput is not known" if math.isnan(share) else f"throughput ± {percent(share)}"
    which = "undisturbed " if len(found) < len(records.numbers) else ""
    times = f"{len(found)} {which}repeat{'' if len(found) == 1 else 's'}"
    detail = f"{known}, ± {percent(until)} requested, after {times}"
    return [NOT_PRECISE.with_detail(add_disturbance(detail, records.facts))]


def check_disturbance(records: Records) -> list[Reason]:
    """DISTURBED if too few repeats were undisturbed to compute the metrics from them alone.

    A lasting load slows all repeats, so that a narrow interval surrounds a wrong value.
    """
    numbers = records.numbers
    undisturbed = [number for number in numbers if number not in records.disturbed]
    if len(undisturbed) == len(numbers) or len(undisturbed) >= MINIMUM_REPEATS:
        return []
    counts = f"{len(undisturbed)} of {len(numbers)} repeats were undisturbed"
    detail = f"{counts}, at least {MINIMUM_REPEATS} are needed"
    return [DISTURBED.with_detail(add_disturbance(detail, records.facts))]


def describe_disturbance(facts: dict[str, Any]) -> str:
    """The disturbed repeats and their causes, as text; empty if there are none.

    Example: 'repeat 1: other processes used 0.9 of 2 CPUs'
    """
    return _describe(disturbances(facts), "why", facts)


def describe_sharing(facts: dict[str, Any]) -> str:
    """The repeats that neighbours of the pack slowed down, as text; empty if there are none."""
    return _describe(sharings(facts), "shared", facts)


def _describe(found: list[dict[str, Any]], key: str, facts: dict[str, Any]) -> str:
    described = [f"repeat {entry['repeat']}: {entry[key]}" for entry in found[:MOST_DESCRIBED]]
    if more := found[MOST_DESCRIBED:]:
        described.append(f"and {len(more)} more of {len(facts['disturbance'])} repeats")
    return "; ".join(described)


def add_disturbance(detail: str, facts: dict[str, Any]) -> str:
    """A reason's detail, followed by the run's disturbances, which may be its cause."""
    return "; ".join(filter(None, (detail, describe_disturbance(facts))))


def percent(share: float) -> str:
    """A share in percent with two significant digits: '4.8 %', '12 %'."""
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
