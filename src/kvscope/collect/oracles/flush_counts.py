"""Counts that several oracles share: accesses found in a flush, and those its batch demands."""

from functools import cached_property

import numpy as np

from kvscope.arraytypes import Bools, Int64s
from kvscope.collect.kv.demand import Demand
from kvscope.collect.kv.flushes import Flush
from kvscope.collect.oracles.run_facts import RunFacts
from kvscope.events import ALL_HEADS, KINDS, V_READ


def as_slice(at: Int64s) -> slice | Int64s:
    """The places as a slice if they are consecutive, so that indexing makes no copy."""
    consecutive = len(at) > 0 and at[-1] - at[0] + 1 == len(at)
    return slice(int(at[0]), int(at[-1]) + 1) if consecutive else at


class Reads:
    """The reads of a flush in their order, and how each relates to the next.

    `at` are the places of the reads among the events. For each read but the last, `position_step`
    is the next read's block position minus its own, and `same_owner` is whether both have the same
    segment, row and head. A *run* is a sequence of reads of one owner and kind at rising positions.
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
        """Which reads start a run."""
        begins = np.ones(len(self.at), np.bool_)
        begins[1:] = (
            ~self.same_owner | (self.position_step <= 0) | (self.kind[1:] != self.kind[:-1])
        )
        return begins


class FlushCounts:
    """A flush with the counts that several oracles need, each computed once."""

    def __init__(self, flush: Flush, run: RunFacts, moved: list[str] | None = None) -> None:
        self.flush, self.run = flush, run
        self.moved = moved  # descriptions of requests whose blocks changed; None if unknown
        self.demand = Demand(flush)
        self.heads = [ALL_HEADS] if flush.kv_heads is None else flush.kv_heads

    @cached_property
    def is_read(self) -> Bools:
        """Which events are reads."""
        return self.flush.kind <= V_READ

    @cached_property
    def head_column(self) -> Int64s:
        """The place of each event's head among the traced heads; -1 for other heads."""
        heads = self.flush.kv_head
        if self.flush.kv_heads is None:
            return np.where(heads == ALL_HEADS, 0, -1)
        known = np.full(max(self.heads, default=0) + 2, -1)  # the last for every other head
        known[self.heads] = np.arange(len(self.heads))
        columns: Int64s = known[np.clip(heads, ALL_HEADS, len(known) - 1)]
        return columns

    @cached_property
    def in_context(self) -> Bools:
        """Which events name a row of the batch and a block position that its tokens reach."""
        flush = self.flush
        blocks = np.append(self.demand.blocks, 0)  # the last for rows outside the batch
        reached: Bools = flush.block_position < blocks[flush.row_or_last]
        return reached & (flush.block_position >= 0)

    @cached_property
    def known_reads(self) -> Int64s:
        """The places of the reads that have a slot and a traced head."""
        return np.flatnonzero(self.is_read & self.in_context & (self.head_column >= 0))

    @cached_property
    def cell(self) -> Int64s:
        """The cell of each known read in the flattened array slot × head × (K, V)."""
        flush, at = self.flush, as_slice(self.known_reads)
        slot = self.demand.first_slot[flush.row[at]] + flush.block_position[at]
        cell: Int64s = (slot * len(self.heads) + self.head_column[at]) * 2 + flush.kind[at]
        return cell

    @cached_property
    def reads(self) -> Reads:
        """The reads, in order."""
        return Reads(self.flush, np.flatnonzero(self.is_read))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (slots, heads, 2); the last axis is K, V."""
        return self.demand.slots, len(self.heads), 2

    @cached_property
    def found(self) -> Int64s:
        """Number of reads found; array of `shape`."""
        size = int(np.prod(self.shape))
        return np.bincount(self.cell, minlength=size).reshape(self.shape)

    @cached_property
    def surplus(self) -> Int64s:
        """Reads found minus reads demanded; array of `shape`."""
        return self.found - self.demand.reads[:, None, None]

    def describe_cell(self, slot: int, head: int) -> str:
        """A phrase for a slot and head: request, head and block position."""
        of = "" if self.flush.kv_heads is None else f", head {self.heads[head]}"
        request = self.flush.requests[self.demand.row[slot]]
        return f"request {request}{of}, block position {self.demand.position[slot]}"

    def describe_event(self, event: int) -> str:
        """A phrase for an event: kind, request, head and block position."""
        flush = self.flush
        row, head = int(flush.row[event]), int(flush.kv_head[event])
        of = f"request {flush.requests[row]}" if flush.known_row[event] else f"row {row}"
        of += "" if head == ALL_HEADS else f", head {head}"
        return f"{KINDS[flush.kind[event]]} of {of}, block position {flush.block_position[event]}"


def first_index(wrong: Bools) -> tuple[int, ...]:
    """The indices of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
