"""Oracles of accesses: each block and token is read and written as the batch demands.

Reads are counted by slot (a block position of a request), head, and K or V, and compared with how
often tiles of queries reach that slot; writes are counted by token. docs/TRACE_SPEC.md says how
events come about. Where a premise is unknown (an imported trace has no heads, say) an oracle does
not apply.
"""

from collections.abc import Callable

import numpy as np

from kvscope.arraytypes import Bools, Int64s
from kvscope.collect.oracles.flush_counts import FlushCounts, as_slice, first_index
from kvscope.events import ALL_HEADS, ATTENTION, K_READ, K_WRITE, KINDS, V_READ, V_WRITE, WRITE
from kvscope.oracle import NONE, Violations, violations


def events_dropped(counts: FlushCounts) -> Violations:
    """No event was dropped for want of room."""
    segments = counts.flush.segments
    if segments.dropped is None or not segments.dropped.any():
        return NONE
    worst = int(segments.dropped.argmax())
    words = f"worker {segments.worker[worst]} dropped {segments.dropped[worst]} events"
    return Violations(int(segments.dropped.sum()), words)


def records_unreadable(counts: FlushCounts) -> Violations:
    """Every record is an event.

    One of no known kind was never written: what was in memory there shows through.
    """
    count = counts.flush.unreadable
    return Violations(count, f"{count} records are no events") if count else NONE


# ------------------------------------------------------------------ reads


def k_reads_missing(counts: FlushCounts) -> Violations:
    """Every tile reads K of every block up to its end, for every traced head.

    One violation a missing event.
    """
    return _reads_missing(counts, K_READ)


def v_reads_missing(counts: FlushCounts) -> Violations:
    """Every tile reads V of every block up to its end, for every traced head.

    One violation a missing event.
    """
    return _reads_missing(counts, V_READ)


def _reads_missing(counts: FlushCounts, kind: int) -> Violations:
    of_kind = np.arange(2) == kind
    return _reads_differ(counts, np.where(of_kind, -counts.surplus, 0))


def reads_repeated(counts: FlushCounts) -> Violations | None:
    """No block is read more often than tiles reach it, and none that the batch has not.

    A batch has the rows and the block positions that its requests' tokens reach.
    """
    strangers = np.flatnonzero(counts.is_read & ~counts.in_context)
    of_strangers = violations(
        strangers, lambda event: f"{counts.describe_event(event)}, which the batch has not"
    )
    repeated = _reads_differ(counts, counts.surplus)
    if not (of_strangers or repeated or counts.flush.traces(ATTENTION)):
        return None
    return of_strangers + repeated


def _reads_differ(counts: FlushCounts, by: Int64s) -> Violations:
    """Where the reads found and demanded differ by more than 0; `by` is of `counts.shape`."""
    by = by.clip(min=0)
    if not by.any():
        return NONE
    slot, head, kind = first_index(by > 0)
    found, due = counts.found[slot, head, kind], counts.demand.reads[slot]
    words = f"{counts.describe_cell(slot, head)}: {found} {KINDS[kind]} events, {due} expected"
    return Violations(int(by.sum()), words)


def heads_missing(counts: FlushCounts) -> Violations:
    """Each traced head is read, no other is."""
    if not counts.demand.slots:
        return NONE
    found = set(np.unique(counts.flush.kv_head[counts.is_read]).tolist())
    silent, strange = sorted({*counts.heads} - found), sorted(found - {*counts.heads})
    wrong = [f"head {head} has no read" for head in silent]
    wrong += [f"head {head} is not traced" for head in strange]
    return violations(wrong, lambda first: f"{first}; traced are {counts.heads}")


def tokens_misread(counts: FlushCounts) -> Violations:
    """A read takes a block from its first token, up to its end or the tile's.

    All tiles together read as many tokens of a block as their ends demand.
    """
    flush, demand, at = counts.flush, counts.demand, counts.known_reads
    own = as_slice(at)
    row, tokens = flush.row[own], flush.tokens[own]
    reach = flush.block_position[own] * flush.block_size + tokens
    whole = tokens == flush.block_size
    good = (flush.offset_tokens[own] == 0) & whole & (reach <= demand.end[row])
    doubtful = np.flatnonzero(~good)
    if len(doubtful):
        short = (tokens[doubtful] > 0) & (tokens[doubtful] < flush.block_size)
        short &= flush.offset_tokens[at[doubtful]] == 0
        good[doubtful] = short & demand.ends_a_tile(row[doubtful], reach[doubtful])

    def words(event: int) -> str:
        found = f"tokens {flush.offset_tokens[event]} + {flush.tokens[event]}"
        return f"{counts.describe_event(event)}: {found}, where no tile ends"

    return violations(at[~good], words) or _sums_differ(counts)


def _sums_differ(counts: FlushCounts) -> Violations:
    """Where each read is one that some tile does, but the tiles together would read otherwise."""
    tokens = counts.flush.tokens[as_slice(counts.known_reads)].astype(np.float64)
    sums = np.bincount(counts.cell, tokens, counts.found.size).reshape(counts.shape)
    due = counts.demand.tokens_read[:, None, None]
    wrong = (counts.surplus == 0) & (sums != due)
    if not wrong.any():
        return NONE
    slot, head, kind = first_index(wrong)
    found = f"{sums[slot, head, kind]:.0f} tokens in all {KINDS[kind]} events"
    words = f"{counts.describe_cell(slot, head)}: {found}, {due[slot, 0, 0]} due"
    return Violations(int(wrong.sum()), words)


# ------------------------------------------------------------------ writes


def tokens_not_written(counts: FlushCounts) -> Violations:
    """Every scheduled token's K and V are written."""
    return _written(counts, lambda times: times == 0, "never")


def tokens_written_twice(counts: FlushCounts) -> Violations | None:
    """No token is written twice, and none that was not scheduled."""
    again = _written(counts, lambda times: times > 1, "more than once")
    strange = _strange_writes(counts)
    if not (strange or counts.flush.traces(WRITE)):
        return None
    return again + strange


def _written(counts: FlushCounts, wrong: Callable[[Int64s], Bools], how: str) -> Violations:
    """Scheduled tokens whose K or V was written a wrong number of times."""
    flush = counts.flush
    if not flush.traces(WRITE):
        return NONE

    tokens = int(flush.scheduled.sum())

    def words(found: int) -> str:
        kind, place = divmod(found, tokens)
        rows = np.repeat(np.arange(len(flush.scheduled)), flush.scheduled)
        row = int(rows[place])
        token = flush.context[row] + place - int(np.searchsorted(rows, row))
        of = f"request {flush.requests[row]}: token {token}"
        return f"{of} was written {how} ({KINDS[K_WRITE + kind]})"

    times = [_times_written(counts, kind) for kind in (K_WRITE, V_WRITE)]
    return violations(np.flatnonzero(wrong(np.concatenate(times))), words)


def _written_span(counts: FlushCounts, at: Int64s) -> tuple[Int64s, Int64s]:
    """The tokens that events wrote, from … to, counted from their row's first scheduled one."""
    flush = counts.flush
    begin = flush.block_position[at] * flush.block_size + flush.offset_tokens[at]
    begin = begin - flush.context[flush.row[at]]
    return begin, begin + flush.tokens[at]


def _times_written(counts: FlushCounts, kind: int) -> Int64s:
    """How often each scheduled token was written, row after row: by adding up where spans lie."""
    flush = counts.flush
    at = np.flatnonzero((flush.kind == kind) & flush.known_row)
    due = flush.scheduled[flush.row[at]]
    first = (np.cumsum(flush.scheduled) - flush.scheduled)[flush.row[at]]
    begin, end = (first + np.clip(edge, 0, due) for edge in _written_span(counts, at))
    total = int(flush.scheduled.sum())
    begins, ends = (np.bincount(edge, minlength=total + 1) for edge in (begin, end))
    return np.cumsum(begins - ends)[:total]


def _strange_writes(counts: FlushCounts) -> Violations:
    """Writes of tokens that were not scheduled."""
    flush = counts.flush
    at = np.flatnonzero(~counts.is_read & flush.known_row)
    begin, end = _written_span(counts, at)
    bad = at[(begin < 0) | (end > flush.scheduled[flush.row[at]])]
    bad = np.union1d(bad, np.flatnonzero(~counts.is_read & ~flush.known_row))
    held = "holds tokens that were not scheduled"
    return violations(bad, lambda event: f"{counts.describe_event(event)} {held}")


def write_malformed(counts: FlushCounts) -> Violations:
    """A write is of all heads, and V of a piece is written after its K, by the same worker."""
    flush = counts.flush
    at = np.flatnonzero(~counts.is_read)
    of_a_head = at[flush.kv_head[at] != ALL_HEADS]
    if len(of_a_head):
        head = f"is of head {flush.kv_head[of_a_head[0]]}"
        return violations(of_a_head, lambda event: f"{counts.describe_event(event)} {head}")
    k, v = (at[flush.kind[at] == kind] for kind in (K_WRITE, V_WRITE))
    if len(k) != len(v):
        return NONE  # tokens_not_written or tokens_written_twice has the case
    k, v = (one[np.lexsort(_piece(counts, one))] for one in (k, v))
    same = np.ones(len(k), np.bool_)
    for of_k, of_v in zip(_piece(counts, k), _piece(counts, v), strict=True):
        same &= of_k == of_v
    early = v[same & (flush.start_ticks[v] < flush.start_ticks[k])]
    return violations(early, lambda e: f"{counts.describe_event(e)} begins before its K is written")


def _piece(counts: FlushCounts, at: Int64s) -> tuple[Int64s, ...]:
    flush = counts.flush
    return tuple(
        column[at]
        for column in (flush.offset_tokens, flush.block_position, flush.row, flush.segment)
    )


# ------------------------------------------------------------------ the head of a flush


def layer_wrong(counts: FlushCounts) -> Violations:
    """Every event says that it is of the layer whose kernel wrote it."""
    count = counts.flush.other_layers
    return Violations(count, f"{count} events say they are of another layer") if count else NONE


def layer_unknown(counts: FlushCounts) -> Violations:
    """Every flush is of a layer that the model has and that was traced."""
    traced, layer = counts.run.traced_layers or [], counts.flush.layer
    return NONE if layer in traced else Violations(1, f"layer {layer}; traced are {traced}")


def batch_differs(counts: FlushCounts) -> Violations:
    """A flush has the requests, phases, contexts and tokens that the scheduler gave the pass."""
    schedule = counts.run.schedule
    difference = schedule.difference(counts.flush) if schedule else ""
    return Violations(1, difference) if difference else NONE
