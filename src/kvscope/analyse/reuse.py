"""How a block of one layer is used over time: bursts of accesses, and what lies between them.

A burst is all that one pass does to one block of one layer: from the start of the first access to
the end of the last. The next burst reuses the block if it is of the same request, which was not
preempted between them, and does not write the block's first token: otherwise what the block held
before is gone, also where the request got a block of that number back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvscope.analyse.events import Events
from kvscope.arraytypes import Bools, Int64s, Ints


@dataclass(frozen=True)
class Bursts:
    """One row a (pass, layer, block, request), ordered by start; `fresh` ones fill the block.

    `life` distinguishes what a request holds before a preemption from what it holds after it.
    """

    layer: Int64s
    block: Int64s
    request: Int64s
    life: Int64s
    fills_block: Bools
    start_ns: Int64s
    end_ns: Int64s

    @property
    def duration_ns(self) -> Int64s:
        """From the first access to the end of the last."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Reuses:
    """One row a burst that has a predecessor, ordered by start.

    `idle_ns` is from the predecessor's end to its start; `distance_blocks` the number of other
    blocks (of a layer each) that had a burst after the predecessor's start and before its own.
    """

    layer: Int64s
    idle_ns: Int64s
    distance_blocks: Int64s


def bursts_of(batches: Iterable[Events], preempted: pd.DataFrame) -> Bursts:
    """The bursts of events that come as whole passes.

    `preempted` has a row a preemption: `request_id`, and the `step` whose scheduling preempted it.
    """
    parts = [_bursts(events, preempted) for events in batches if len(events)]
    if not parts:
        none = np.empty(0, np.int64)
        return Bursts(none, none, none, none, none.astype(bool), none, none)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[-2], kind="stable")
    return Bursts(*(column[order] for column in columns))


def _bursts(events: Events, preempted: pd.DataFrame) -> tuple[Ints, ...]:
    group = keys(events.step, events.layer, events.request, events.block)
    order = np.argsort(group, kind="stable")
    first = starts_of(group[order])
    fills = ~events.reads & (events.offset_tokens == 0)
    one_of_each = order[first]
    request, step = (of[one_of_each].astype(np.int64) for of in (events.request, events.step))
    return (
        events.layer[one_of_each].astype(np.int64),
        events.block[one_of_each].astype(np.int64),
        request,
        _lives(request, step, events.requests, preempted),
        np.logical_or.reduceat(fills[order], first),
        np.minimum.reduceat(events.start_ns[order], first),
        np.maximum.reduceat(events.end_ns[order], first),
    )


def _lives(
    request: Int64s, step: Int64s, requests: tuple[str, ...], preempted: pd.DataFrame
) -> Int64s:
    """How many preemptions of all requests, in their order and in time, each place comes after.

    Two places of one request have the same number if it was not preempted between them.
    """
    number = {name: place for place, name in enumerate(requests)}
    of_request = preempted["request_id"].map(number)
    known = of_request.notna().to_numpy(dtype=bool)
    at = preempted["step"].to_numpy(np.int64)[known]
    span = 1 + max(int(step.max()), int(at.max(initial=0)))
    ends = np.sort(of_request[known].to_numpy(np.int64) * span + at)
    lives: Int64s = np.searchsorted(ends, request * span + step, side="right").astype(np.int64)
    return lives


def reuses_of(bursts: Bursts) -> Reuses:
    """What lies between successive bursts in the same block of a layer, where it is a reuse."""
    previous = _predecessors(bursts)
    reused = np.flatnonzero(previous >= 0)
    idle = bursts.start_ns[reused] - bursts.end_ns[previous[reused]]
    return Reuses(bursts.layer[reused], idle, distinct_between(previous)[reused])


def _predecessors(bursts: Bursts) -> Int64s:
    """The burst before each one in its block; -1 where there is none, or it held something else."""
    group = keys(bursts.layer, bursts.block)
    order = np.argsort(group, kind="stable")
    before = np.full(len(group), -1, np.int64)
    earlier, later = order[:-1], order[1:]
    kept = [of[later] == of[earlier] for of in (group, bursts.request, bursts.life)]
    same = np.logical_and.reduce(kept)
    before[later[same]] = earlier[same]
    before[bursts.fills_block] = -1
    return before


def distinct_between(previous: Int64s) -> Int64s:
    """How many different things came up between each place of a sequence and its predecessor.

    `previous` gives the last place before of the same thing, -1 if there is none (then the result
    is -1). Of the places between p and i those that have a predecessor after p are seen again:
    intervals that lie within another one.
    """
    ends = np.flatnonzero(previous >= 0)
    by_start = np.argsort(-previous[ends])  # predecessors are all different
    inner = np.empty(len(ends), np.int64)
    inner[by_start] = _smaller_before(by_start)
    result = np.full(len(previous), -1, np.int64)
    result[ends] = ends - previous[ends] - 1 - inner
    return result


def _smaller_before(permutation: Int64s) -> Int64s:
    """Of each number of a permutation of 0 … n-1: how many smaller ones stand before it.

    Numbers are sorted by ever more of their leading bits. Among those same so far, one whose next
    bit is 1 has the earlier ones with a 0 before it.
    """
    count = np.zeros(len(permutation), np.int64)  # by number
    numbers = permutation
    for bit in range(len(permutation).bit_length() - 1, -1, -1):
        one = (numbers >> bit) & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~one)])
        group = (numbers >> (bit + 1)) << (bit + 1)  # where those same begin
        zeros_before = zeros[:-1] - zeros[group]
        count[numbers[one]] += zeros_before[one]
        place = np.arange(len(numbers))
        ones_before = place - group - zeros_before
        target = np.where(one, group + (1 << bit) + ones_before, group + zeros_before)
        moved = np.empty_like(numbers)
        moved[target] = numbers
        numbers = moved
    return count[permutation]


def keys(*columns: Ints) -> Int64s:
    """One number a row: same where all columns are, and ordered like them."""
    key = np.zeros(len(columns[0]), np.int64)
    bound = 1
    for column in columns:
        if not len(column):
            return key
        low, high = int(column.min()), int(column.max())
        span = high - low + 1
        if bound * span >= 2**62:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            bound = int(key.max()) + 1
        key = key * span + (column.astype(np.int64) - low)
        bound *= span
    return key


def starts_of(ordered: Int64s) -> Int64s:
    """Where each stretch of equal numbers begins."""
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
