"""Gaps of a recording: the passes that are missing, and the requests that they concern.

Behind a gap, what happened to requests within it is taken from the next segment's beginning, which
has those that are there and those that ended; what is missing follows from the passes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvscope_record.records import (
    Arrival,
    Done,
    Ended,
    Event,
    Live,
    Preempted,
    Sampled,
    Scheduled,
)

LOST = "ENDED_IN_A_GAP"
"""The state of a request whose end is missing."""


@dataclass
class Gap:
    """A place where records are missing."""

    first_step: int  # of the missing passes
    next_step: int
    begin_ns: int
    end_ns: int
    why: str
    live: dict[int, Live] = field(default_factory=dict)  # at the next segment's beginning
    done: dict[int, Done] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What is missing, and why."""
        if self.next_step <= self.first_step:
            return f"records before pass {self.next_step} are missing: {self.why}"
        last = self.next_step - 1
        several = f"passes {self.first_step} to {last} are"
        passes = f"pass {last} is" if last == self.first_step else several
        return f"{passes} missing: {self.why}"


Recorded = Event | Gap


@dataclass
class Mended:
    """The events of a stretch, in which each request comes before it is served, and ends once."""

    events: list[Recorded] = field(default_factory=list)
    unknown_ends: int = 0  # requests that ended in a gap, with an unknown status
    unknown_prompts: int = 0  # requests that came in a gap, with prompts of unknown lengths


def mend(live: Iterable[Live], events: list[Recorded]) -> Mended:
    """Add the arrivals and ends of requests that gaps have swallowed."""
    if not any(isinstance(event, Gap) for event in events):
        return Mended(events)
    mended = Mended()
    given = {request.request: request.output_tokens for request in live}
    there = {request.request for request in live}
    came = {*there, *(event.request for event in events if isinstance(event, Arrival))}
    last = {request: place for place, event in enumerate(events) for request in _concerned(event)}
    for place, event in enumerate(events):
        if isinstance(event, Gap):
            mended.events.append(event)
            mended.events += _swallowed(event, place, there, came, last, given, mended)
            continue
        for request in _concerned(event):
            if request not in came:
                mended.unknown_prompts += 1
                mended.events.append(_guessed(request, event))
                came.add(request)
                there.add(request)
        if isinstance(event, Arrival):
            there.add(event.request)
        elif isinstance(event, Ended):
            there.discard(event.request)
        elif isinstance(event, Sampled):
            for request, tokens in zip(event.requests, event.tokens, strict=True):
                given[request] = given.get(request, 0) + tokens
        mended.events.append(event)
    return mended


def _swallowed(
    gap: Gap,
    place: int,
    there: set[int],
    came: set[int],
    last: dict[int, int],
    given: dict[int, int],
    mended: Mended,
) -> Iterator[Event]:
    """Arrivals and ends within a gap."""
    for request in sorted(there):
        if last.get(request, -1) > place or request in gap.live:
            continue
        there.discard(request)
        if (done := gap.done.get(request)) is None:
            mended.unknown_ends += 1
            yield Ended(request, gap.end_ns, LOST, 0, given.get(request, 0))
        else:
            yield Ended(request, *done[4:8])
    for request, done in gap.done.items():
        if request not in came and gap.begin_ns <= done.time_ns:
            came.add(request)
            yield Arrival(request, *done[1:4], [])
            if done.time_ns <= gap.end_ns:
                yield Ended(request, *done[4:8])
            else:
                there.add(request)
    for request, one in gap.live.items():
        if request not in came:
            came.add(request)
            there.add(request)
            yield Arrival(request, *one[1:5])


def _concerned(event: Recorded) -> Iterable[int]:
    """The requests that an event is about, which must have come before."""
    if isinstance(event, Scheduled):
        return event.requests
    if isinstance(event, Ended | Preempted):
        return (event.request,)
    return ()


def _guessed(request: int, event: Recorded) -> Arrival:
    """An arrival by what the first pass behind a gap had of its request."""
    tokens, time_ns = 1, 0
    if isinstance(event, Scheduled):
        row = [*event.requests].index(request)
        cached, computed = event.cached[row], event.computed[row]
        tokens = max(1, cached if computed == 1 else cached + computed)
        time_ns = event.start_ns
    elif isinstance(event, Ended | Preempted):
        time_ns = event.time_ns
    return Arrival(request, time_ns, tokens, 1, [])
