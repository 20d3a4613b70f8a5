"""The registry of reasons why a run is not valid: its records are not those of a sound run.

A violated oracle is a reason, too, under its own name. Noise never makes a run invalid; it widens
intervals (`circumstances`).
"""

from dataclasses import dataclass


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
    "warm_up_incomplete",
    "requests all come at once, and a shape class was measured that warm-up had not met",
)
PROFILER_LOST_EVENTS = ReasonKind(
    "profiler_lost_events", "`profiler=nsys` was requested, and its trace is incomplete or absent"
)
OUTPUTS_DIFFER = ReasonKind(
    "outputs_differ_between_experiments",
    "experiments of a study that must give the same tokens gave different ones (found by the "
    "report)",
)

REASONS = (FAILED, NO_WARM_UP, WARM_UP_INCOMPLETE, PROFILER_LOST_EVENTS, OUTPUTS_DIFFER)
