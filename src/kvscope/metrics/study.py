"""Metrics of a study, computed from the `metrics` tables of its experiments.

docs/all_metrics().md defines them under 'Study level'. The report computes them.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from kvscope.base.statistics import UNKNOWN, Interval
from kvscope.metrics import measure
from kvscope.metrics.estimates import Estimates, ExperimentMetrics
from kvscope.metrics.measure import Measure, measures
from kvscope.metrics.registry import all_metrics
from kvscope.plan.parts import CacheSettings


def add_study_metrics(experiments: Sequence[ExperimentMetrics]) -> list[pd.DataFrame]:
    """The `metrics` tables of a study's experiments: times adjusted, rows of STUDY_METRICS added.

    The column `adjusted` says which times are as if nothing had waited for a CPU.
    """
    measured = {str(place): experiment for place, experiment in enumerate(experiments)}
    estimates = Estimates(measured)
    adjusted = [replace(run, metrics=estimates.adjusted(name)) for name, run in measured.items()]
    names = dict(zip(adjusted, measured, strict=True))
    estimates = Estimates(dict(zip(measured, adjusted, strict=True)))

    def beyond(one: ExperimentMetrics, ample: ExperimentMetrics | None) -> Interval:
        return estimates.difference("makespan_s", names[one], names[ample]) if ample else UNKNOWN

    partners = find_ample_partners(adjusted)
    return [
        _add_rows(experiment, ample, beyond(experiment, ample))
        for experiment, ample in zip(adjusted, partners, strict=True)
    ]


def find_ample_partners(experiments: Sequence[ExperimentMetrics]) -> list[ExperimentMetrics | None]:
    """A partner of each experiment that preempts: equal work with an ample cache, or None.

    The partner differs in cache size and overflow policy only and never preempts; neither aborted a
    request. Of several, the one with the lowest peak use, which has the largest cache.
    """
    roomy: dict[tuple[bool, str], list[ExperimentMetrics]] = defaultdict(list)
    for run in experiments:
        if run.settings and run.estimate("preemptions").value == 0 and _served_all(run):
            roomy[_same_work(run)].append(run)
    return [
        min(roomy[_same_work(run)], key=_fullness, default=None)
        if run.estimate("preemptions").value > 0 and _served_all(run)
        else None
        for run in experiments
    ]


def _served_all(one: ExperimentMetrics) -> bool:
    """Whether no request was aborted, so that partners did the same work."""
    return not one.estimate("aborted_requests").value > 0


def cost_per_preemption(one: ExperimentMetrics) -> Interval:
    """Net resume overhead a preemption, in s; an interval if all repeats preempt equally often."""
    overhead, preemptions = one.estimate("resume_overhead_net_s"), one.estimate("preemptions")
    if not preemptions.value > 0:
        return UNKNOWN
    ends = (overhead.low, overhead.high) if _is_exact(preemptions) else (math.nan, math.nan)
    value, low, high = (number / preemptions.value for number in (overhead.value, *ends))
    return Interval(value, low, high, overhead.count)


def swap_bandwidth(one: ExperimentMetrics) -> Interval:
    """Swapped bytes over seconds of copies; an interval if all repeats swap equally many bytes.

    The half widths of the two times are added, a bound on the half width of their sum.
    """
    swapped = one.estimate("swapped_bytes")
    copies = [one.estimate(name) for name in ("swap_out_s", "swap_in_s")]
    shortest, time, longest = (
        sum(ends) for ends in zip(*((c.low, c.value, c.high) for c in copies), strict=True)
    )
    if not (swapped.value > 0 and time > 0):
        return UNKNOWN
    value, count = swapped.value / time, min(c.count for c in copies)
    if not _is_exact(swapped) or not shortest > 0:
        return Interval(value, math.nan, math.nan, count)
    return Interval(value, swapped.value / longest, swapped.value / shortest, count)


def _add_rows(
    one: ExperimentMetrics, ample: ExperimentMetrics | None, beyond: Interval
) -> pd.DataFrame:
    rows = [_row(metric, one, ample, beyond) for metric in STUDY_METRICS]
    added = pd.DataFrame(rows, columns=one.metrics.columns).astype(one.metrics.dtypes)
    return pd.concat([one.metrics, added.set_index("metric", drop=False)])


def _row(
    metric: "StudyMetric",
    one: ExperimentMetrics,
    ample: ExperimentMetrics | None,
    beyond: Interval,
) -> dict[str, Any]:
    """A row of the `metrics` table; valid if all experiments that it is computed from are."""
    interval = metric.of(one, beyond)
    first = one.metrics.iloc[0]
    behind = [first] if ample is None or not metric.compares else [first, ample.metrics.iloc[0]]
    reasons = [name for row in behind for name in str(row["reasons"]).split(";") if name]
    return {
        **first,  # experiment, time source and run are the same in all rows
        **{"metric": metric.name, "unit": metric.unit, "repeats_valid": interval.count},
        **{"value": interval.value, "ci_low": interval.low, "ci_high": interval.high},
        "adjusted": bool(one.metrics["adjusted"].any()),
        "valid": all(bool(row["valid"]) for row in behind),
        "reasons": ";".join(dict.fromkeys(reasons)),
    }


def _same_work(one: ExperimentMetrics) -> tuple[bool, str]:
    """Whether it was rehearsed; all settings except cache size and overflow policy, as text."""
    settings = one.settings
    shared = {section: value for section, value in settings.items() if section != "overflow"}
    cache = settings.get("cache", {})
    shared["cache"] = {key: v for key, v in cache.items() if key not in CacheSettings.one_of}
    return one.rehearsed, json.dumps(shared, sort_keys=True)


def _fullness(one: ExperimentMetrics) -> float:
    return one.estimate("kv_block_utilization_peak").value


def _is_exact(number: Interval) -> bool:
    """Whether all repeats have the same value."""
    return number.count == 1 or number.low == number.high


@dataclass(frozen=True)
class StudyMetric(Measure):
    """A metric of an experiment in a study; `of` takes it and its makespan beyond an ample cache.

    If it `compares` the two, it is valid only if both are.
    """

    of: Callable[[ExperimentMetrics, Interval], Interval]
    compares: bool = False


STUDY_METRICS = (
    StudyMetric(
        "makespan_beyond_ample_s",
        "s",
        "Makespan beyond ample",
        "makespan_s − makespan_s of the same requests with room for all; see below",
        lambda _, beyond: beyond,
        compares=True,
        better=-1,
        signed=True,
        optional=True,
        column=40,
        first=True,
    ),
    StudyMetric(
        "resume_overhead_net_per_preemption_s",
        "s",
        "Net cost of a preemption",
        "resume_overhead_net_s / preemptions, with an interval if every repeat preempts equally "
        "often",
        lambda one, _: cost_per_preemption(one),
        better=-1,
        display="ms",
        signed=True,
    ),
    StudyMetric(
        "swap_bandwidth_bytes_per_s",
        "B/s",
        "Swap bandwidth",
        "swapped_bytes / (swap_out_s + swap_in_s), with an interval if every repeat swaps equally "
        "much; the half widths of the two times add up, which is wider than the interval of their "
        "sum",
        lambda one, _: swap_bandwidth(one),
        better=1,
    ),
)


measure.SOURCES.append(lambda: (*all_metrics(), *STUDY_METRICS))


@cache
def column_measures() -> list[Measure]:
    """The metrics that are columns of tables, in order."""
    return sorted((m for m in measures().values() if m.column), key=lambda m: m.column)
