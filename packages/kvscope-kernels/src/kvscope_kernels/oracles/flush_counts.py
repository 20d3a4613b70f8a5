"""Counts that several oracles share: accesses found in a flush, and those its batch demands."""

from functools import cached_property

import numpy as np

from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Bools, Int64s, Ints
from kvscope_kernels.collect.demand import Demand
from kvscope_kernels.collect.flushes import Flush
from kvscope_kernels.oracles.run_facts import RunFacts

Places = slice | Int64s


def as_slice(at: Int64s) -> Places:
    """The places as a slice if they are consecutive, so that indexing makes no copy."""
    consecutive = len(at) > 0 and at[-1] - at[0] + 1 == len(at)
    return slice(int(at[0]), int(at[-1]) + 1) if consecutive else at


class Reads:
    """The reads of a flush in their order, and how each relates to the next.

    `at` are the places of the reads among the events, and `own` the same as a slice if they are
    consecutive. `onward` is, for each read but the last, whether the next one has the same segment,
    row and head, and the next block position. A *run* is a sequence of such reads of one kind;
    runs are described by the place of their first read in `at` and by their length.
    """

    def __init__(self, flush: Flush, at: Int64s) -> None:
        self.at, self.own = at, as_slice(at)
        self.kind = flush.kind[self.own]
        self.onward: Bools = np.diff(flush.block_position[self.own]) == 1
        for column in (flush.row, flush.kv_head, flush.segment):
            values = column[self.own]
            self.onward &= values[1:] == values[:-1]
        goes_on = self.onward & (self.kind[1:] == self.kind[:-1])
        self.run_first = np.flatnonzero(np.append(np.ones(len(at[:1]), np.bool_), ~goes_on))
        self.run_length = np.diff(self.run_first, append=len(at))

    def first(self, column: Ints) -> Ints:
        """Values of a column of the flush at the first read of each run."""
        return column[self.at[self.run_first]]

    def of_runs(self, those: Bools) -> Int64s:
        """The places of the reads of those runs."""
        return self.at[np.repeat(those, self.run_length)]


class FlushCounts:
    """A flush with the counts that several oracles need, each computed once."""

    def __init__(self, flush: Flush, run: RunFacts, moved: list[str] | None = None) -> None:
        self.flush, self.run = flush, run
        self.moved = moved  # descriptions of requests whose blocks changed; None if unknown
        self.demand = Demand(flush)
        self.heads = [kv_events.ALL_HEADS] if flush.kv_heads is None else flush.kv_heads

    @cached_property
    def is_read(self) -> Bools:
        """Mask of the events that are reads."""
        return self.flush.kind <= kv_events.V_READ

    def head_column(self, heads: Ints) -> Int64s:
        """The places of heads among the traced heads; -1 for other heads."""
        if self.flush.kv_heads is None:
            return np.where(heads == kv_events.ALL_HEADS, 0, -1)
        column_of = np.full(max(self.heads, default=0) + 2, -1)  # the last for every other head
        column_of[self.heads] = np.arange(len(self.heads))
        columns: Int64s = column_of[np.clip(heads, kv_events.ALL_HEADS, len(column_of) - 1)]
        return columns

    @cached_property
    def blocks(self) -> Int64s:
        """The blocks that each row's tokens reach, and 0 for rows outside the batch."""
        return np.append(self.demand.blocks, 0)

    @cached_property
    def reads(self) -> Reads:
        """The reads, in order."""
        return Reads(self.flush, np.flatnonzero(self.is_read))

    @cached_property
    def writes(self) -> Int64s:
        """The places of the writes among the events."""
        return np.flatnonzero(~self.is_read)

    @cached_property
    def intervals_ns(self) -> list[tuple[int, int] | None]:
        """Start and end of each kernel on the host's clock; None if unknown.

        Raises BadInput if a kernel is out of the clock's range.
        """
        clock, origin = self.run.clock, self.flush.origin_ticks
        return [clock.interval_ns(kernel, origin) for kernel in self.flush.kernels]

    def in_context(self, at: Int64s) -> Bools:
        """Mask of these events that name a row of the batch and a block that its tokens reach."""
        position = self.flush.block_position[at]
        inside: Bools = (position >= 0) & (position < self.blocks[self.flush.row_or_last[at]])
        return inside

    @cached_property
    def outside(self) -> Int64s:
        """The places of the reads that are not in context."""
        reads = self.reads
        begin = reads.first(self.flush.block_position).astype(np.int64)
        most = self.blocks[reads.first(self.flush.row_or_last)]
        beyond = reads.of_runs((begin < 0) | (begin + reads.run_length > most))
        return beyond[~self.in_context(beyond)]

    def cells(self, reads: Int64s) -> tuple[Int64s, Int64s]:
        """The reads at these places that have a slot and a traced head, and their cells.

        Cells are numbered by head, then K or V, then slot.
        """
        flush = self.flush
        places = reads[self.in_context(reads) & (self.head_column(flush.kv_head[reads]) >= 0)]
        slot = self.demand.first_slot[flush.row[places]] + flush.block_position[places]
        return places, self._lane(flush.kv_head[places], flush.kind[places]) + slot

    def _lane(self, heads: Ints, kinds: Ints) -> Int64s:
        """The first cell of a head and kind."""
        lane: Int64s = (self.head_column(heads) * 2 + kinds) * self.demand.slots
        return lane

    def by_slot(self, cells: Int64s) -> Int64s:
        """Values of all cells as an array of `shape`."""
        slots, heads, kinds = self.shape
        return cells.reshape(heads, kinds, slots).transpose(2, 0, 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (slots, heads, 2); the last axis is K, V."""
        return self.demand.slots, len(self.heads), 2

    @cached_property
    def found(self) -> Int64s:
        """Number of reads, summed over the ends of runs; array of `shape`."""
        reads, size = self.reads, int(np.prod(self.shape))
        row, heads = reads.first(self.flush.row_or_last), reads.first(self.flush.kv_head)
        begin = reads.first(self.flush.block_position).astype(np.int64)
        slot = np.append(self.demand.first_slot, 0)[row]
        lane = self._lane(heads, reads.kind[reads.run_first]) + slot
        traced = self.head_column(heads) >= 0
        begins, ends = (
            np.bincount((lane + edge.clip(0, self.blocks[row]))[traced], minlength=size + 1)
            for edge in (begin, begin + reads.run_length)
        )
        return self.by_slot(np.cumsum(begins - ends)[:size])

    @cached_property
    def written_spans(self) -> tuple[Int64s, Int64s, Int64s]:
        """The places of the writes of known rows, and the first token and end of each.

        Tokens count from the first scheduled token of the row.
        """
        flush, places = self.flush, self.writes[self.flush.known_row[self.writes]]
        begin = flush.block_position[places].astype(np.int64) * flush.block_size
        begin += flush.offset_tokens[places] - flush.context[flush.row[places]]
        return places, begin, begin + flush.tokens[places]

    @cached_property
    def times_written(self) -> Int64s:
        """Number of writes of K, then V, of each scheduled token, row after row.

        Summed up over the ends of spans.
        """
        scheduled, (places, *span) = self.flush.scheduled, self.written_spans
        row, total = self.flush.row[places], int(scheduled.sum())
        first = (np.cumsum(scheduled) - scheduled)[row]
        first += np.where(self.flush.kind[places] == kv_events.V_WRITE, total, 0)
        begins, ends = (
            np.bincount(first + edge.clip(0, scheduled[row]), minlength=2 * total + 1)
            for edge in span
        )
        return np.cumsum(begins - ends)[: 2 * total]

    @cached_property
    def surplus(self) -> Int64s:
        """Reads found minus reads demanded; array of `shape`."""
        return self.found - self.demand.reads[:, None, None]

    def describe_cell(self, slot: int, head: int) -> str:
        """A phrase for a slot and head: request, head and block position."""
        of_head = "" if self.flush.kv_heads is None else f", head {self.heads[head]}"
        request = self.flush.requests[self.demand.row[slot]]
        return f"request {request}{of_head}, block position {self.demand.position[slot]}"

    def describe_event(self, event: int) -> str:
        """A phrase for an event: kind, request, head and block position."""
        flush = self.flush
        row, head = int(flush.row[event]), int(flush.kv_head[event])
        target = f"request {flush.requests[row]}" if flush.known_row[event] else f"row {row}"
        target += "" if head == kv_events.ALL_HEADS else f", head {head}"
        kind, position = kv_events.KINDS[flush.kind[event]], flush.block_position[event]
        return f"{kind} of {target}, block position {position}"


def first_index(wrong: Bools) -> tuple[int, ...]:
    """The indices of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
