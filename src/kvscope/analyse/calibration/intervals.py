"""Intervals of a modeled run's metrics: from fits of the cost model to bootstrap samples."""

import math
from collections.abc import Mapping

from kvscope.analyse.calibration.recosting import Recosting
from kvscope.analyse.metric import Metric
from kvscope.analyse.records import Records
from kvscope.interval import bootstrap_interval
from kvscope.plan.devices.modeled import Modeled
from kvscope.plan.workload import ALL_AT_ONCE
from kvscope.runschema import MODELED

# Metrics that the numbers of the hardware decide, and that are quickly computed.
TIMED = (
    "makespan_s",
    "throughput_tokens_per_s",
    "throughput_without_stalls_tokens_per_s",
    "output_throughput_tokens_per_s",
    "prefill_throughput_tokens_per_s",
    "decode_throughput_tokens_per_s",
    "mixed_throughput_tokens_per_s",
    "ttft_mean_s",
    "latency_mean_s",
    "resume_overhead_gross_s",
    "resume_overhead_as_published_s",
    "resume_overhead_net_s",
    "swap_out_s",
    "swap_in_s",
    "rebuild_s",
    "save_s",
)
POLICIES = ("recompute", "swap", "activation", "adaptive")  # whose costs the model has

Interval = tuple[float, float]


def modeled_intervals(records: Records, values: Mapping[Metric, float]) -> dict[str, Interval]:
    """Of each timed metric of a modeled run the interval of 95 % of the bootstrap's fits.

    `values` are the metrics as recorded, and lie in their intervals. What is 0 happens in no pass,
    whatever passes take. Empty if the run is not modeled, its hardware was not fitted, arrivals
    decide its passes, or its overflow policy is none of kvscope's own.
    """
    if records.facts.get("time_source") != MODELED or records.steps.empty:
        return {}
    experiment = records.experiment
    fits = experiment.device.fits if isinstance(experiment.device, Modeled) else ()
    known = experiment.workload.arrival == ALL_AT_ONCE and experiment.overflow.name in POLICIES
    if not fits or not known:
        return {}
    repeat = next(records.repeats())
    recosting = Recosting(repeat, experiment)
    timed = {m: value for m, value in values.items() if m.name in TIMED and not math.isnan(value)}
    changing = [metric for metric, value in timed.items() if value]
    found = [[metric.of(one) for metric in changing] for one in map(recosting.records, fits)]
    never = {metric.name: (0.0, 0.0) for metric in timed}
    return never | {
        metric.name: bootstrap_interval(values[metric], samples)
        for metric, samples in zip(changing, zip(*found, strict=True), strict=True)
    }
