"""Costs that modeled times do not contain, and which policies that favours.

vLLM's offloading submits a job of copies on the host, before any copy runs. On the modeled device
that takes no time: a policy that offloads by it can only gain, also where nothing overflows.
"""

from collections.abc import Iterable

from kvscope.base.time_sources import MODELED
from kvscope.report.data import ReportedRun

STORED = "offload_stored_bytes"  # by jobs of vLLM's offloading
PRESSURE = ("preemptions", "prefix_cache_evictions")
SUBMITTING = "the host's time to submit copies"
WITHOUT = f"without {SUBMITTING}, not modeled"


def lacks_submission(run: ReportedRun) -> bool:
    """Whether a run's times lack what submitting the copies of vLLM's offloading takes."""
    return run.time_source == MODELED and run.number(STORED).value > 0


def is_ample(runs: Iterable[ReportedRun]) -> bool:
    """Whether modeled runs neither preempt nor evict what a prefix cache keeps.

    What offloading costs the host is then all that would differ.
    """
    return all(run.time_source == MODELED and not _pressed(run) for run in runs)


def _pressed(run: ReportedRun) -> bool:
    """Whether the cache had too little room for what it could keep; NaN is of what it lacks."""
    return any(run.number(metric).value > 0 for metric in PRESSURE)
