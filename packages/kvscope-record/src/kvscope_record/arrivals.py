"""Before which pass of a recording each of its requests came, and before which it was aborted."""

from dataclasses import dataclass, field

from kvscope_record.records import Arrival, Ended, Scheduled
from kvscope_record.replayed import SERVED, Replayed


@dataclass
class Arrivals:
    """Passes by request, numbered from 0 as the table `steps` does."""

    came: dict[int, int] = field(default_factory=dict)
    given_up: dict[int, int] = field(default_factory=dict)  # of requests that were not served


def arrivals_of(made: Replayed) -> Arrivals:
    """Arrivals of all requests of a recording. Unfinished ones are aborted after its last pass."""
    arrivals = Arrivals({live.request: 0 for live in made.window.live})
    passes = 0
    for event in made.window.events:
        if isinstance(event, Arrival):
            arrivals.came[event.request] = passes
        elif isinstance(event, Ended) and event.status not in SERVED:
            arrivals.given_up[event.request] = passes
        elif isinstance(event, Scheduled):
            passes = min(passes + 1, len(made.recording.passes))
    left = made.came.keys() - made.ended.keys()
    arrivals.given_up |= dict.fromkeys(left, len(made.recording.passes))
    return arrivals
