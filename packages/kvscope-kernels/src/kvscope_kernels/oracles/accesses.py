"""Oracles of accesses: every block is read, and every token written, as the batch demands.

Reads are counted by slot (a block position of a request), head, and K or V, and compared with the
number of query tiles that reach the slot. Writes are counted by token. docs/KV_EVENTS.md describes
how kernels make events. An oracle does not apply where its premise is unknown, such as the heads in
an imported trace.
"""

from collections.abc import Callable

import numpy as np

from kvscope.api.oracles import oracle
from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Bools, Int64s
from kvscope_kernels.oracles.flush_counts import FlushCounts, first_index


def events_dropped(counts: FlushCounts) -> oracle.Violations:
    """No event was dropped because its segment was full."""
    segments = counts.flush.segments
    if segments.dropped is None or not segments.dropped.any():
        return oracle.NONE
    worst = int(segments.dropped.argmax())
    words = f"worker {segments.worker[worst]} dropped {segments.dropped[worst]} events"
    return oracle.Violations(int(segments.dropped.sum()), words)


def records_unreadable(counts: FlushCounts) -> oracle.Violations:
    """Every record in a segment is an event.

    A record with values out of range was never written: it is leftover memory.
    """
    count = counts.flush.unreadable
    return oracle.Violations(count, f"{count} records are not events") if count else oracle.NONE


# ------------------------------------------------------------------ reads


def k_reads_missing(counts: FlushCounts) -> oracle.Violations:
    """Every tile reads K of every block up to its end, for every traced head.

    One violation a missing event.
    """
    return _reads_missing(counts, kv_events.K_READ)


def v_reads_missing(counts: FlushCounts) -> oracle.Violations:
    """Every tile reads V of every block up to its end, for every traced head.

    One violation a missing event.
    """
    return _reads_missing(counts, kv_events.V_READ)


def _reads_missing(counts: FlushCounts, kind: int) -> oracle.Violations:
    return _reads_differ(counts, -counts.surplus[:, :, kind : kind + 1], kind)


def reads_repeated(counts: FlushCounts) -> oracle.Violations | None:
    """No block is read more often than tiles reach it, and no block outside the batch is read.

    The batch has the block positions that its requests' tokens reach.
    """
    unknown = oracle.violations(
        counts.outside, lambda event: f"{counts.describe_event(event)}, which is not in the batch"
    )
    repeated = _reads_differ(counts, counts.surplus)
    if not (unknown or repeated or counts.flush.traces(kv_events.ATTENTION)):
        return None
    return unknown + repeated


def _reads_differ(counts: FlushCounts, by: Int64s, kind: int = 0) -> oracle.Violations:
    """One violation for each unit of the positive values of `by`: by slot, head and kind.

    Its first kind is `kind`.
    """
    wrong = by > 0
    if not wrong.any():
        return oracle.NONE
    slot, head, further = first_index(wrong)
    kind += further
    count, expected = counts.found[slot, head, kind], counts.demand.reads[slot]
    name = kv_events.KINDS[kind]
    words = f"{counts.describe_cell(slot, head)}: {count} {name} events, {expected} expected"
    return oracle.Violations(int(by[wrong].sum()), words)


def heads_missing(counts: FlushCounts) -> oracle.Violations:
    """Reads name every traced head, and no other head."""
    expected, told = counts.run.heads, counts.flush.kv_heads
    if expected not in (None, told):
        return oracle.Violations(1, f"the trace has heads {told}; traced are {expected}")
    if not counts.demand.slots:
        return oracle.NONE
    read_heads = {*counts.reads.first(counts.flush.kv_head).tolist()}
    missing, unknown = sorted({*counts.heads} - read_heads), sorted(read_heads - {*counts.heads})
    wrong = [f"head {head} has no read" for head in missing]
    wrong += [f"head {head} is not traced" for head in unknown]
    return oracle.violations(wrong, lambda first: f"{first}; traced are {counts.heads}")


def tokens_misread(counts: FlushCounts) -> oracle.Violations:
    """A read starts at the first token of its block and ends at the end of the block or of a tile.

    The tokens of a block that all tiles read add up to the number that follows from the tiles'
    ends.
    """
    flush, demand, reads = counts.flush, counts.demand, counts.reads
    full = np.append(demand.end // flush.block_size, 0)[reads.first(flush.row_or_last)]
    whole = flush.block_position[reads.own] < np.repeat(full, reads.run_length)
    whole &= flush.tokens[reads.own] == flush.block_size
    whole &= flush.offset_tokens[reads.own] == 0
    places, _ = counts.cells(reads.at[~whole])
    row, tokens = flush.row[places], flush.tokens[places]
    reach = flush.block_position[places].astype(np.int64) * flush.block_size + tokens
    good = (flush.offset_tokens[places] == 0) & (tokens > 0) & (tokens < flush.block_size)
    good &= demand.ends_a_tile(row, reach)

    def words(event: int) -> str:
        span = f"tokens {flush.offset_tokens[event]} + {flush.tokens[event]}"
        return f"{counts.describe_event(event)}: {span}, where no tile ends"

    return oracle.violations(places[~good], words) or _sums_differ(counts)


def _sums_differ(counts: FlushCounts) -> oracle.Violations:
    """Cells with the demanded number of reads but another sum of tokens."""
    flush, reads, size = counts.flush, counts.reads, counts.flush.block_size
    places, cells = counts.cells(reads.at[flush.tokens[reads.own] != size])
    lacking = np.bincount(cells, float(size) - flush.tokens[places], counts.found.size)
    short = counts.by_slot(lacking)  # of whole blocks
    expected = counts.demand.tokens_read
    wrong = (short != (counts.demand.reads * size - expected)[:, None, None]) & (
        counts.surplus == 0
    )
    if not wrong.any():
        return oracle.NONE
    slot, head, kind = first_index(wrong)
    tokens = counts.found[slot, head, kind] * size - short[slot, head, kind]
    total = f"{tokens:.0f} tokens in all its {kv_events.KINDS[kind]} events"
    words = f"{counts.describe_cell(slot, head)}: {total}, {expected[slot]} expected"
    return oracle.Violations(int(wrong.sum()), words)


# ------------------------------------------------------------------ writes


def tokens_not_written(counts: FlushCounts) -> oracle.Violations:
    """K and V of every scheduled token are written."""
    return _written(counts, lambda times: times == 0, "never")


def tokens_written_twice(counts: FlushCounts) -> oracle.Violations | None:
    """No token is written twice, and no token is written that was not scheduled."""
    again = _written(counts, lambda times: times > 1, "more than once")
    unscheduled = _unscheduled_writes(counts)
    if not (unscheduled or counts.flush.traces(kv_events.WRITE)):
        return None
    return again + unscheduled


def _written(counts: FlushCounts, wrong: Callable[[Int64s], Bools], how: str) -> oracle.Violations:
    """One violation for each scheduled token and K or V whose number of writes is `wrong`."""
    flush = counts.flush
    if not flush.traces(kv_events.WRITE):
        return oracle.NONE

    tokens = int(flush.scheduled.sum())

    def words(cell: int) -> str:
        kind, place = divmod(cell, tokens)
        rows = np.repeat(np.arange(len(flush.scheduled)), flush.scheduled)
        row = int(rows[place])
        token = flush.context[row] + place - int(np.searchsorted(rows, row))
        what = f"request {flush.requests[row]}: token {token}"
        return f"{what} was written {how} ({kv_events.KINDS[kv_events.K_WRITE + kind]})"

    return oracle.violations(np.flatnonzero(wrong(counts.times_written)), words)


def _unscheduled_writes(counts: FlushCounts) -> oracle.Violations:
    """One violation for each write that covers a token that was not scheduled."""
    flush = counts.flush
    places, begin, end = counts.written_spans
    bad = places[(begin < 0) | (end > flush.scheduled[flush.row[places]])]
    bad = np.union1d(bad, counts.writes[~flush.known_row[counts.writes]])
    fault = "covers tokens that were not scheduled"
    return oracle.violations(bad, lambda event: f"{counts.describe_event(event)} {fault}")


def write_malformed(counts: FlushCounts) -> oracle.Violations:
    """A write covers all heads, and a worker writes V of a piece after K of the same piece."""
    flush = counts.flush
    places = counts.writes
    of_a_head = places[flush.kv_head[places] != kv_events.ALL_HEADS]
    if len(of_a_head):
        head = f"is of head {flush.kv_head[of_a_head[0]]}"
        return oracle.violations(of_a_head, lambda event: f"{counts.describe_event(event)} {head}")
    k, v = (places[flush.kind[places] == kind] for kind in (kv_events.K_WRITE, kv_events.V_WRITE))
    if len(k) != len(v):
        return oracle.NONE  # reported by tokens_not_written or tokens_written_twice
    k, v = (places[np.lexsort(_piece(counts, places))] for places in (k, v))
    same = np.ones(len(k), np.bool_)
    for of_k, of_v in zip(_piece(counts, k), _piece(counts, v), strict=True):
        same &= of_k == of_v
    early = v[same & (flush.start_ticks[v] < flush.start_ticks[k])]
    return oracle.violations(
        early, lambda e: f"{counts.describe_event(e)} begins before its K is written"
    )


def _piece(counts: FlushCounts, places: Int64s) -> tuple[Int64s, ...]:
    """Columns that identify the piece of a block that each of these writes covers."""
    flush = counts.flush
    return tuple(
        column[places]
        for column in (flush.offset_tokens, flush.block_position, flush.row, flush.segment)
    )


# ------------------------------------------------------------------ the head of a flush


def layer_wrong(counts: FlushCounts) -> oracle.Violations:
    """Every event names the layer of the kernel that recorded it."""
    count = counts.flush.other_layers
    return oracle.Violations(count, f"{count} events name another layer") if count else oracle.NONE


def layer_unknown(counts: FlushCounts) -> oracle.Violations:
    """Every flush names a traced layer of the model."""
    traced, layer = counts.run.traced_layers or [], counts.flush.layer
    return (
        oracle.NONE
        if layer in traced
        else oracle.Violations(1, f"layer {layer}; traced are {traced}")
    )


def flush_incomplete(counts: FlushCounts) -> oracle.Violations:
    """A flush of kvscope has block tables, and on a CPU the times of its kernels. Its blocks and
    tiles have as many tokens as run.json says.
    """
    flush, sizes = counts.flush, counts.run.sizes
    wrong = []
    if flush.block_table is None:
        wrong.append("no block table")
    if flush.segments.timers is None and any(
        None in (kernel.start_ticks, kernel.end_ticks) for kernel in flush.kernels
    ):
        wrong.append("a kernel without times")
    for name, value in zip(sizes._fields, (flush.block_size, flush.tile_tokens), strict=True):
        expected = getattr(sizes, name)
        if expected not in (None, value):
            wrong.append(f"{name} is {value}, run.json has {expected}")
    return oracle.violations(wrong, str)


def batch_differs(counts: FlushCounts) -> oracle.Violations:
    """A flush has the requests, phases, contexts and tokens that were scheduled for its pass."""
    schedule = counts.run.schedule
    difference = schedule.difference(counts.flush) if schedule else ""
    return oracle.Violations(1, difference) if difference else oracle.NONE
