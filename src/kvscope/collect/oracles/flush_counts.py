"""What the oracles of a flush compare: its accesses counted, and those that its batch demands."""

from functools import cached_property

import numpy as np

from kvscope.arraytypes import Bools, Int64s
from kvscope.collect.kv.demand import Demand
from kvscope.collect.kv.flushes import Flush
from kvscope.collect.oracles.run_facts import RunFacts
from kvscope.events import ALL_HEADS, KINDS, V_READ


def as_slice(at: Int64s) -> slice | Int64s:
    """The same places, as a slice if they lie together: what it takes is not copied then."""
    together = len(at) > 0 and at[-1] - at[0] + 1 == len(at)
    return slice(int(at[0]), int(at[-1]) + 1) if together else at


class Reads:
    """A flush's reads in their order: their places `at` among the events, and how they follow.

    Of each read but the last, `onward` is how many block positions the next one lies further, and
    `together` whether both are of one segment, row and head. A *run* is a sequence of reads
    together, of one kind, at delta_encoded positions.
    """

    def __init__(self, flush: Flush, at: Int64s) -> None:
        self.at, own = at, as_slice(at)
        self.kind = flush.kind[own]
        self.position_step: Int64s = np.diff(flush.block_position[own])
        self.same_owner: Bools = np.ones(max(len(at) - 1, 0), np.bool_)
        for column in (flush.row, flush.kv_head, flush.segment):
            values = column[own]
            self.same_owner &= values[1:] == values[:-1]

    @cached_property
    def run_starts(self) -> Bools:
        """Which reads begin a run."""
        begins = np.ones(len(self.at), np.bool_)
        begins[1:] = (
            ~self.same_owner | (self.position_step <= 0) | (self.kind[1:] != self.kind[:-1])
        )
        return begins


class FlushCounts:
    """A flush, with the counts that several oracles need; each is worked out once."""

    def __init__(self, flush: Flush, run: RunFacts, moved: list[str] | None = None) -> None:
        self.flush, self.run = flush, run
        self.moved = moved  # requests with other blocks than before, in words; None if not known
        self.demand = Demand(flush)
        self.heads = [ALL_HEADS] if flush.kv_heads is None else flush.kv_heads

    @cached_property
    def is_read(self) -> Bools:
        """Which events are reads."""
        return self.flush.kind <= V_READ

    @cached_property
    def head_column(self) -> Int64s:
        """Of each event, the place of its head among the traced ones; -1 if it is none of them."""
        heads = self.flush.kv_head
        if self.flush.kv_heads is None:
            return np.where(heads == ALL_HEADS, 0, -1)
        known = np.full(max(self.heads, default=0) + 2, -1)  # the last for every other head
        known[self.heads] = np.arange(len(self.heads))
        columns: Int64s = known[np.clip(heads, ALL_HEADS, len(known) - 1)]
        return columns

    @cached_property
    def in_context(self) -> Bools:
        """Which events are of a row of the batch, and of a position that its tokens reach."""
        flush = self.flush
        blocks = np.append(self.demand.blocks, 0)  # the last for rows that the batch has not
        reached: Bools = flush.block_position < blocks[flush.row_or_last]
        return reached & (flush.block_position >= 0)

    @cached_property
    def known_reads(self) -> Int64s:
        """The places of the reads that are of a slot and of a traced head."""
        return np.flatnonzero(self.is_read & self.in_context & (self.head_column >= 0))

    @cached_property
    def cell(self) -> Int64s:
        """Of each such read, its cell among slot × head × (K, V)."""
        flush, at = self.flush, as_slice(self.known_reads)
        slot = self.demand.first_slot[flush.row[at]] + flush.block_position[at]
        cell: Int64s = (slot * len(self.heads) + self.head_column[at]) * 2 + flush.kind[at]
        return cell

    @cached_property
    def reads(self) -> Reads:
        """The reads in their order."""
        return Reads(self.flush, np.flatnonzero(self.is_read))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slots, heads, and 2 for K and V."""
        return self.demand.slots, len(self.heads), 2

    @cached_property
    def found(self) -> Int64s:
        """Reads found, of this shape."""
        size = int(np.prod(self.shape))
        return np.bincount(self.cell, minlength=size).reshape(self.shape)

    @cached_property
    def surplus(self) -> Int64s:
        """Reads found less reads demanded, of this shape."""
        return self.found - self.demand.reads[:, None, None]

    def describe_cell(self, slot: int, head: int) -> str:
        """Slot and head in words."""
        of = "" if self.flush.kv_heads is None else f", head {self.heads[head]}"
        request = self.flush.requests[self.demand.row[slot]]
        return f"request {request}{of}, block position {self.demand.position[slot]}"

    def describe_event(self, event: int) -> str:
        """An event in words."""
        flush = self.flush
        row, head = int(flush.row[event]), int(flush.kv_head[event])
        of = f"request {flush.requests[row]}" if flush.known_row[event] else f"row {row}"
        of += "" if head == ALL_HEADS else f", head {head}"
        return f"{KINDS[flush.kind[event]]} of {of}, block position {flush.block_position[event]}"


def first_index(wrong: Bools) -> tuple[int, ...]:
    """The indices of the first that is wrong."""
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
