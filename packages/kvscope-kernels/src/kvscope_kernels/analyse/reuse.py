"""Use of blocks over time: bursts of accesses, and the reuses between them.

A burst is all accesses of one pass to one block of one layer, from the start of the first to the
end of the last, by whatever requests share the block. The next burst reuses the block if it has the
same content: that of the same request, which was not preempted in between, and the block's first
token is not written. Otherwise the block has new content, even if the request received the same
block number again. A block that was found in the prefix cache has the content of its owner.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvscope_kernels.analyse.events import Events
from kvscope_kernels.arraytypes import Bools, Int64s, Ints


@dataclass(frozen=True)
class Bursts:
    """One element a (pass, layer, block, content), ordered by start.

    `fills_block` is true where the burst writes the block's first token. `request` is the one that
    computed the block, and `life` differs before and after a preemption of it.
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
        """Nanoseconds from the start of the first access to the end of the last."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Reuses:
    """Reuses of blocks by bursts, in arrays with one element each, ordered by start.

    `idle_ns` is the time from the end of the previous burst in the block to the start of this one.
    `distance_blocks` is the number of other (layer, block) pairs with a burst in between.
    """

    layer: Int64s
    idle_ns: Int64s
    distance_blocks: Int64s


def bursts_of(
    batches: Iterable[Events], preempted: pd.DataFrame, hits: pd.DataFrame | None = None
) -> Bursts:
    """The bursts of events, given in batches of whole passes.

    `preempted` has one row a preemption: `request_id`, and the `step` that was being scheduled.
    `hits` has the rows of that table; None without any.
    """
    parts = [_bursts(events, preempted, hits) for events in batches if len(events)]
    if not parts:
        none = np.empty(0, np.int64)
        return Bursts(none, none, none, none, none.astype(bool), none, none)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[-2], kind="stable")
    return Bursts(*(column[order] for column in columns))


def _bursts(events: Events, preempted: pd.DataFrame, hits: pd.DataFrame | None) -> tuple[Ints, ...]:
    request, life = _contents(events, preempted, hits)
    group = keys(events.step, events.layer, request, life, events.block)
    order = np.argsort(group, kind="stable")
    first = starts_of(group[order])
    fills = ~events.reads & (events.offset_tokens == 0)
    one_of_each = order[first]
    return (
        events.layer[one_of_each].astype(np.int64),
        events.block[one_of_each].astype(np.int64),
        request[one_of_each],
        life[one_of_each],
        np.logical_or.reduceat(fills[order], first),
        np.minimum.reduceat(events.start_ns[order], first),
        np.maximum.reduceat(events.end_ns[order], first),
    )


def _contents(
    events: Events, preempted: pd.DataFrame, hits: pd.DataFrame | None
) -> tuple[Int64s, Int64s]:
    """Request that computed the block of each event, and the life in which it did."""
    request, step = (column.astype(np.int64) for column in (events.request, events.step))
    life = _lives(request, step, events.requests, preempted)
    kept_hits = None if hits is None else hits[hits["request_id"].isin(events.requests)]
    if kept_hits is None or kept_hits.empty:
        return request, life
    names = (*events.requests, *sorted({*kept_hits["owner"]} - {*events.requests}))
    number = {name: place for place, name in enumerate(names)}
    finder, owner = (
        kept_hits[column].map(number).to_numpy(np.int64) for column in ("request_id", "owner")
    )
    since, computed = (
        _lives(request_of_hit, kept_hits[column].to_numpy(np.int64), names, preempted)
        for request_of_hit, column in ((finder, "step"), (owner, "cached_step"))
    )
    both = keys(
        np.concatenate([request, finder]),
        np.concatenate([life, since]),
        np.concatenate([events.block.astype(np.int64), kept_hits["block"].to_numpy(np.int64)]),
    )
    of_events, of_hits = both[: len(request)], both[len(request) :]
    order = np.argsort(of_hits, kind="stable")
    place = np.minimum(np.searchsorted(of_hits[order], of_events), len(order) - 1)
    row = order[place]
    is_found = of_hits[row] == of_events
    return np.where(is_found, owner[row], request), np.where(is_found, computed[row], life)


def _lives(
    request: Int64s, step: Int64s, requests: tuple[str, ...], preempted: pd.DataFrame
) -> Int64s:
    """A number for each (request, step) that changes exactly at preemptions of the request.

    It is the rank of (request, step) among all preemptions, ordered by request and step.
    """
    number = {name: place for place, name in enumerate(requests)}
    of_request = preempted["request_id"].map(number)
    traced = of_request.notna().to_numpy(dtype=bool)
    preempted_step = preempted["step"].to_numpy(np.int64)[traced]
    span = 1 + max(int(step.max()), int(preempted_step.max(initial=0)))
    ends = np.sort(of_request[traced].to_numpy(np.int64) * span + preempted_step)
    lives: Int64s = np.searchsorted(ends, request * span + step, side="right").astype(np.int64)
    return lives


def reuses_of(bursts: Bursts) -> Reuses:
    """The reuses among these bursts."""
    previous = _predecessors(bursts)
    reused = np.flatnonzero(previous >= 0)
    idle = bursts.start_ns[reused] - bursts.end_ns[previous[reused]]
    return Reuses(bursts.layer[reused], idle, distinct_between(previous)[reused])


def _predecessors(bursts: Bursts) -> Int64s:
    """The index of the burst that each one reuses the block of, or -1."""
    group = keys(bursts.layer, bursts.block)
    order = np.argsort(group, kind="stable")
    before = np.full(len(group), -1, np.int64)
    earlier, later = order[:-1], order[1:]
    kept = [values[later] == values[earlier] for values in (group, bursts.request, bursts.life)]
    same = np.logical_and.reduce(kept)
    before[later[same]] = earlier[same]
    before[bursts.fills_block] = -1
    return before


def distinct_between(previous: Int64s) -> Int64s:
    """The number of distinct items between each place of a sequence and the item's last place.

    `previous[i]` is the last earlier place of the item at i, or -1; then the result is -1, too. The
    result is the number of places between the two, less those whose own `previous` is also between
    them: nested intervals.
    """
    ends = np.flatnonzero(previous >= 0)
    by_start = np.argsort(-previous[ends])  # the values of previous are distinct
    inner = np.empty(len(ends), np.int64)
    inner[by_start] = _smaller_before(by_start)
    result = np.full(len(previous), -1, np.int64)
    result[ends] = ends - previous[ends] - 1 - inner
    return result


def _smaller_before(permutation: Int64s) -> Int64s:
    """For each number of a permutation of 0 … n-1, how many smaller numbers precede it.

    A radix sort by leading bits: within a group of equal leading bits, each number whose next bit
    is 1 is preceded by the smaller numbers whose next bit is 0.
    """
    count = np.zeros(len(permutation), np.int64)  # by number
    numbers = permutation
    for bit in range(len(permutation).bit_length() - 1, -1, -1):
        has_bit = (numbers >> bit) & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~has_bit)])
        group = (numbers >> (bit + 1)) << (bit + 1)  # where those same begin
        zeros_before = zeros[:-1] - zeros[group]
        count[numbers[has_bit]] += zeros_before[has_bit]
        place = np.arange(len(numbers))
        ones_before = place - group - zeros_before
        target = np.where(has_bit, group + (1 << bit) + ones_before, group + zeros_before)
        moved = np.empty_like(numbers)
        moved[target] = numbers
        numbers = moved
    return count[permutation]


def keys(*columns: Ints) -> Int64s:
    """One number a row, which is equal and ordered as the columns are, compared in turn."""
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
    """The places where a stretch of equal numbers starts."""
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
