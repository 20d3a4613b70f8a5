"""The registry of reasons why a run is not valid.

A violated oracle is a reason, too, under its own name.
"""

from dataclasses import dataclass

from kvscope.plan.repeats import MINIMUM_REPEATS

MAXIMUM_VARIATION = 0.10
"""Makespans that vary more than this (standard deviation over mean) are unstable."""
MAXIMUM_STALL_SHARE = 0.05
"""A repeat that lost more than this share of its makespan in stalls is stalled."""


@dataclass(frozen=True)
class Reason:
    """A reason why one run is not valid: its name, and the figures behind it."""

    name: str
    detail: str


@dataclass(frozen=True)
class ReasonKind:
    """A registered reason: its name, and its meaning for docs/METRICS.md."""

    name: str
    meaning: str

    def with_detail(self, detail: str) -> Reason:
        """This reason for one run."""
        return Reason(self.name, detail)


FAILED = ReasonKind("failed", "the run did not finish; `run.json` and `log.txt` say why")
NO_WARM_UP = ReasonKind("no_warm_up", "nothing ran before the measured part")
WARM_UP_INCOMPLETE = ReasonKind(
    "warm_up_incomplete", "a shape class was measured that warm-up had not met"
)
TOO_FEW_REPEATS = ReasonKind("too_few_repeats", f"fewer than {MINIMUM_REPEATS}")
UNSTABLE = ReasonKind(
    "unstable",
    "the makespan's standard deviation over the repeats exceeds "
    f"{100 * MAXIMUM_VARIATION:.0f} % of its mean",
)
NOT_PRECISE = ReasonKind(
    "not_precise",
    "`repeats.until` was requested, and half the width of the throughput's 95 % interval is a "
    "larger share of its mean after all repeats",
)
DISTURBED = ReasonKind(
    "disturbed",
    f"fewer than {MINIMUM_REPEATS} repeats were undisturbed, and others were not",
)
STALLED = ReasonKind(
    "stalled",
    f"a repeat lost more than {100 * MAXIMUM_STALL_SHARE:.0f} % of its makespan in stalled passes",
)
PROFILER_LOST_EVENTS = ReasonKind(
    "profiler_lost_events", "the profiler was used and its trace is incomplete or absent"
)
OUTPUTS_DIFFER = ReasonKind(
    "outputs_differ_between_experiments",
    "experiments of a study that must give the same tokens gave different ones (found by the "
    "report)",
)

REASONS = (
    *(FAILED, NO_WARM_UP, WARM_UP_INCOMPLETE, TOO_FEW_REPEATS, UNSTABLE, NOT_PRECISE),
    *(DISTURBED, STALLED, PROFILER_LOST_EVENTS, OUTPUTS_DIFFER),
)
