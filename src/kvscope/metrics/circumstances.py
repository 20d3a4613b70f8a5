"""Circumstances of a measurement, which widen its intervals but do not make it invalid."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvscope.base.quantities import plural, rough_duration
from kvscope.base.statistics import coefficient_of_variation
from kvscope.metrics.serving import makespan_s, stall_time_s
from kvscope.tables.run_view import RunView, counted_repeats
from kvscope.tables.runschema import RepeatRecord, RunRecord

MAXIMUM_VARIATION = 0.10
"""Makespans that vary more than this (standard deviation over mean) are unstable."""
MAXIMUM_STALL_SHARE = 0.05
"""A repeat that lost more than this share of its makespan in stalls is stalled."""
MAXIMUM_WAITING = 0.02
"""A run whose threads waited for a CPU more than this share of their time has waited."""
MAXIMUM_OTHERS = 0.10
"""More use of the machine's CPU time by other processes is a circumstance."""
# Repeats that are described; further ones are counted.
MOST_DESCRIBED = 3

CIRCUMSTANCES = {
    "lone_repeat": "one repeat was measured, and its times have no interval",
    "not_precise": "the interval was wider than `repeats.until` asked for when `repeats.budget_s` "
    "was spent",
    "waited": "the engine's threads were ready without a CPU for more than "
    f"{100 * MAXIMUM_WAITING:.0f} % of their time",
    "cold": "requests come in real time, and shape classes were measured that warm-up had not met",
    "other_load": "other processes used more than "
    f"{100 * MAXIMUM_OTHERS:.0f} % of the machine's CPU time",
    "unstable": "the makespan's standard deviation over the repeats exceeds "
    f"{100 * MAXIMUM_VARIATION:.0f} % of its mean",
    "stalled": f"a repeat lost more than {100 * MAXIMUM_STALL_SHARE:.0f} % of its makespan in "
    "stalled passes",
    "profile_lost": "`profiler=auto` used the profiler, and its trace is incomplete or absent",
}
"""The circumstances that are recorded, by name, with their meanings for docs/METRICS.md."""


@dataclass(frozen=True)
class Circumstance:
    """A circumstance of one run: its name, and the figures behind it."""

    name: str
    detail: str


def find_circumstances(records: RunView) -> list[Circumstance]:
    """The circumstances of a complete run; none of modeled times, which no load changes."""
    record = records.record
    if not records.by_clock:
        return []
    described = {
        "lone_repeat": _lone_repeat(records),
        "not_precise": describe_width(record),
        "waited": _waited(record),
        "cold": _cold(records),
        "other_load": describe_other_load(record),
        **(_of_passes(records) if len(records.steps) else {}),
        "profile_lost": _profile_lost(record),
    }
    return [Circumstance(name, described[name]) for name in CIRCUMSTANCES if described.get(name)]


def describe_width(record: RunRecord) -> str:
    """The requested width of an interval that was not reached; empty if it was reached.

    Half widths shrink with the root of the number of repeats, which says what it would take.
    """
    rule = record.repeats
    if not rule or not rule.until or rule.reached:
        return ""
    budget_s, share, until = rule.budget_s, rule.half_width_share, rule.until
    unit = "round" if any(entry.round for entry in counted_repeats(record)) else "repeat"
    after = f"{budget_s:g} s" if budget_s else f"{rule.measured} {unit}s"
    if share is None:
        return f"no interval after {after}; ± {percent(until)} was asked"
    repeats = math.ceil(rule.measured * (share / until) ** 2)
    each_s = _span_s(record) / max(rule.measured, 1)
    time = f" in {rough_duration(repeats * each_s)}" if each_s else ""
    return (
        f"± {percent(share)} after {after}; ± {percent(until)} was asked, "
        f"which takes about {repeats} {unit}s{time}"
    )


def waiting_share(entry: RepeatRecord) -> float | None:
    """The share of a repeat in which its threads were ready without a CPU; None if not known.

    Waited / (ran + waited), summed over the threads; `entry` is of `clock.repeats` in run.json.
    """
    ran_s, waited_s = entry.ran_s, entry.waited_s
    if ran_s is None or waited_s is None or ran_s + waited_s <= 0:
        return None
    return waited_s / (ran_s + waited_s)


def describe_other_load(record: RunRecord) -> str:
    """The use of CPUs by other processes, '0.9 of 2 CPUs (0.7 to 1.1)'; empty if it is little."""
    used = [entry.other_cpus for entry in record.load if entry.other_cpus is not None]
    cores = record.load[0].cores if used else None
    if not cores or (mean := sum(used) / len(used)) <= MAXIMUM_OTHERS * cores:
        return ""
    return f"{mean:.1f} of {plural(cores, 'CPU')} ({min(used):.1f} to {max(used):.1f})"


def _shortened(described: Sequence[str], found: int, repeats: int) -> str:
    more = found - len(described)
    others = [f"and {more} more of {repeats} repeats"] if more > 0 else []
    return "; ".join([*described, *others])


def _lone_repeat(records: RunView) -> str:
    return "1 repeat" if len(list(records.valid_repeats())) == 1 else ""


def _waited(record: RunRecord) -> str:
    shares = [
        share for entry in counted_repeats(record) if (share := waiting_share(entry)) is not None
    ]
    if not shares or (mean := sum(shares) / len(shares)) <= MAXIMUM_WAITING:
        return ""
    return f"{percent(mean)} of the time ({percent(min(shares))} to {percent(max(shares))})"


def _cold(records: RunView) -> str:
    missed = records.record.warmup.uncovered_classes
    return f"classes {', '.join(missed)}" if missed and records.depends_on_speed else ""


def _of_passes(records: RunView) -> dict[str, str]:
    repeats = list(records.valid_repeats())
    variation = coefficient_of_variation([makespan_s(repeat) for repeat in repeats])
    stalls = list(_stalls(repeats))
    return {
        "unstable": f"the makespan varies by {percent(variation)}"
        if variation > MAXIMUM_VARIATION
        else "",
        "stalled": _shortened(stalls[:MOST_DESCRIBED], len(stalls), len(repeats)),
    }


def _stalls(repeats: Sequence[RunView]) -> Iterator[str]:
    for repeat in repeats:
        share = stall_time_s(repeat) / makespan_s(repeat)
        if share > MAXIMUM_STALL_SHARE:
            yield f"repeat {repeat.repeat}: {percent(share)} of the makespan"


def _profile_lost(record: RunRecord) -> str:
    profiler = record.profiler
    used = profiler and profiler.used == "nsys" and profiler.requested != "nsys"
    return profiler.reason or "" if profiler and used else ""


def _span_s(record: RunRecord) -> float:
    """Seconds from the first repeat's start to the last one's end."""
    entries = counted_repeats(record)
    starts = [entry.start_ns for entry in entries]
    ends = [entry.start_ns * 1e-9 + entry.duration_s for entry in entries]
    return max(ends) - min(starts) * 1e-9 if entries else 0.0


def percent(share: float) -> str:
    """A share in percent with two significant digits: '4.8 %', '12 %'."""
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
