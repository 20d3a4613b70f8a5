"""The records of a recording: what each is made of, in the order in which it is written.

A record is a JSON array, whose first item says which it is. Times are ns of the server's monotonic
clock, requests are numbered by their arrival. Passes are numbered from 0 over the whole recording.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

FORMAT = "kvscope recording 2"


class Arrival(NamedTuple):
    """A request came to the scheduler."""

    request: int
    time_ns: int
    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[str]  # of the full blocks of its prompt, salted
    plain: Sequence[str] = ()  # the same without its cache salt or LoRA adapter, if it has one
    kind: str = "arrival"


class Scheduled(NamedTuple):
    """A pass was scheduled. Lists have an item for each of its requests unless said otherwise."""

    step: int
    start_ns: int
    end_ns: int
    waiting: int  # requests
    blocks_free: int
    preempted: int  # requests, as the scheduler counts
    ended: list[int]  # requests that ended since the pass before
    requests: Sequence[int]
    computed: Sequence[int]  # tokens that it computes
    cached: Sequence[int]  # tokens in the cache before
    hits: list[list[int]]  # of admitted ones: request, tokens found in the prefix cache
    blocks: Sequence[
        list[Any]
    ]  # of those that got some: request, whether admitted, ids by KV group
    counts: Sequence[Sequence[int]]  # of those that have some: request, counts (`record.counts`)
    group_hits: Sequence[Sequence[Any]] = ()  # of admitted ones: request, tokens by KV group
    kind: str = "scheduled"


class Sampled(NamedTuple):
    """A pass ended, and gave tokens."""

    step: int
    output_ns: int  # its tokens are known to the scheduler
    end_ns: int  # the scheduler has processed them
    requests: Sequence[int]  # those that got some
    tokens: Sequence[int]  # how many
    counts: Sequence[Sequence[int]] = ()  # as those of the schedule
    kind: str = "sampled"


class Preempted(NamedTuple):
    """A request is about to lose its blocks."""

    step: int  # the pass that is being scheduled
    time_ns: int
    request: int
    tokens: int  # in the cache
    blocks: list[int]  # of each KV group
    shared: int  # of these, those that other requests hold as well
    kind: str = "preempted"


class Ordered(NamedTuple):
    """vLLM's offloading ordered copies, each of: job, request, blocks, place of the first block."""

    step: int  # the pass that is being scheduled
    time_ns: int
    loads: list[list[int]]  # from the host
    stores: list[list[int]]  # to the host
    awaited: list[int]  # jobs whose blocks the pass gives away, once they have been stored
    kind: str = "ordered"


STOPPED_OR_ABORTED = "STOP_STRING_OR_ABORTED"
"""The state of an aborted request with stop strings: vLLM's engine is not told of one it reached.

Outside the engine vLLM looks for them in the text, and then aborts the request.
"""


class Ended(NamedTuple):
    """A request ended, and by which of vLLM's states, or STOPPED_OR_ABORTED."""

    request: int
    time_ns: int
    status: str
    preemptions: int
    output_tokens: int
    hashes: Sequence[str] = ()  # of its full blocks behind those of its prompt, salted
    kind: str = "ended"


class Live(NamedTuple):
    """A request that was there when a segment began."""

    request: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[str]
    output_tokens: int
    cached_tokens: int
    preemptions: int
    blocks: list[list[int]]  # ids by KV group
    kind: str = "live"


class Segment(NamedTuple):
    """The first record of a segment."""

    facts: dict[str, Any]  # of the recording and its server (`record.facts`)
    number: int
    time_ns: int
    utc_ns: int
    step: int  # the next pass
    dropped: int  # records that were dropped before, for the writer did not keep up
    next_request: int = 0  # number of the request that comes next
    format: str = FORMAT
    kind: str = "segment"


class Done(NamedTuple):
    """A request that ended during the two segments before this one, if these should get lost."""

    request: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    time_ns: int  # it ended
    status: str
    preemptions: int
    output_tokens: int
    kind: str = "done"


class Closed(NamedTuple):
    """The last record of a session that was not killed."""

    time_ns: int
    utc_ns: int
    kind: str = "closed"


Event = Arrival | Scheduled | Sampled | Preempted | Ordered | Ended | Live | Segment | Done | Closed
KINDS: dict[str, type[Event]] = {
    kind._field_defaults["kind"]: kind
    for kind in (
        *(Arrival, Scheduled, Sampled, Preempted, Ordered, Ended, Live),
        *(Segment, Done, Closed),
    )
}


def encode(event: Event) -> list[Any]:
    """An event as the array that is written: its kind, then its fields."""
    return [event.kind, *event[:-1]]


def decode(array: Any) -> Event | None:
    """The event of an array; None if it is of no known kind; ValueError if it is damaged."""
    if not (isinstance(array, list) and array and isinstance(array[0], str)):
        raise ValueError("no record")
    kind = KINDS.get(array[0])
    if kind is None:
        return None
    required = len(kind._fields) - len(kind._field_defaults)
    if not required < len(array) <= len(kind._fields):
        raise ValueError(f"a record {array[0]} of {len(array)} items")
    return kind(*array[1:])  # type: ignore[no-any-return]
