"""Intervals of a modeled run's metrics: from fits of the cost model to bootstrap samples."""

import math
from collections.abc import Mapping

from kvscope.api.metrics import metric
from kvscope.api.runs import Records, planned
from kvscope.api.tables import actions
from kvscope_model.bootstrap import bootstrap_interval
from kvscope_model.calibration.recosting import Recosting
from kvscope_model.device import Modeled

ALL_AT_ONCE = "all_at_once"  # `workload.arrival`

Interval = tuple[float, float]


def modeled_intervals(
    records: Records, values: Mapping[metric.Metric, float]
) -> dict[str, Interval]:
    """Interval of 95 % of the bootstrap's fits, for each metric with a `modeled_interval`.

    `values` are the metrics of a modeled run as recorded, and lie in their intervals. What is 0
    happens in no pass, whatever passes take. Empty if its hardware was not fitted, arrivals decide
    its passes, or the model has no cost of what became of its preempted requests.
    """
    experiment = planned.experiment_of(records)
    fits = experiment.device.fits if isinstance(experiment.device, Modeled) else ()
    modeled = experiment.workload.arrival == ALL_AT_ONCE and not records.has_followers
    modeled &= all(map(_has_cost, records.preemptions["policy"].dropna().unique()))
    modeled &= records.jobs.empty
    if not fits or not modeled:
        return {}
    repeat = next(records.repeats())
    recosting = Recosting(repeat, experiment)
    timed = {
        m: value for m, value in values.items() if m.modeled_interval and not math.isnan(value)
    }
    changing = [m for m, value in timed.items() if value]
    recosted = [[m.of(fitted) for m in changing] for fitted in map(recosting.records, fits)]
    never = {m.name: (0.0, 0.0) for m in timed}
    return never | {
        m.name: bootstrap_interval(values[m], samples)
        for m, samples in zip(changing, zip(*recosted, strict=True), strict=True)
    }


def _has_cost(name: str) -> bool:
    """True if the model has the cost of an action."""
    return name == actions.RECOMPUTE.name or actions.action(name).needs_pool
