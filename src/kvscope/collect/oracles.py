"""Oracles: what must hold of every flush, whatever the engine did. A violation has a name.

An oracle is a function of one flush; `ORACLES` has them all by name. What each demands is in
`docs/METRICS.md`, and how the events come about in `docs/TRACE_SPEC.md`. Where a premise is
unknown (an imported trace has no heads, say) the oracle finds nothing rather than guess.
"""

from collections.abc import Callable

import numpy as np

from kvscope.collect.arrays import Bools, Int64s
from kvscope.collect.evidence import NONE, Evidence, Violations, first_of, span
from kvscope.collect.flushes import ALL_HEADS
from kvscope.collect.oracles_of_time import (
    event_of_other_kernel,
    event_outside_kernel,
    events_overlap,
    v_read_before_k,
)
from kvscope.kinds import ATTENTION, K_READ, K_WRITE, KINDS, V_READ, V_WRITE, WRITE

Oracle = Callable[[Evidence], Violations]


def events_dropped(evidence: Evidence) -> Violations:
    """No event was dropped for want of room."""
    segments = evidence.flush.segments
    if segments.dropped is None or not segments.dropped.any():
        return NONE
    worst = int(segments.dropped.argmax())
    words = f"worker {segments.worker[worst]} dropped {segments.dropped[worst]} events"
    return Violations(int(segments.dropped.sum()), words)


def k_reads_missing(evidence: Evidence) -> Violations:
    """Every tile reads K of every block up to its end, for every traced head."""
    return _reads_missing(evidence, K_READ)


def v_reads_missing(evidence: Evidence) -> Violations:
    """Every tile reads V of every block up to its end, for every traced head."""
    return _reads_missing(evidence, V_READ)


def _reads_missing(evidence: Evidence, kind: int) -> Violations:
    if not evidence.flush.traces(ATTENTION):
        return NONE
    missing = -evidence.surplus[:, :, kind].clip(max=0)
    count = int(missing.sum())
    if not count:
        return NONE
    slot, head = first_of(missing > 0)
    found, due = evidence.found[slot, head, kind], evidence.owed.reads[slot]
    words = f"{evidence.cell_words(slot, head)}: {found} {KINDS[kind]} events, {due} expected"
    return Violations(count, words)


def reads_repeated(evidence: Evidence) -> Violations:
    """No block is read more often than tiles reach it, and none that the batch has not."""
    strangers = np.flatnonzero(evidence.is_read & ~evidence.in_context)
    repeated = evidence.surplus.clip(min=0)
    count = int(repeated.sum()) + len(strangers)
    if not count:
        return NONE
    if len(strangers):
        words = f"{evidence.event_words(strangers[0])}, which the batch has not"
    else:
        slot, head, kind = first_of(repeated > 0)
        found, due = evidence.found[slot, head, kind], evidence.owed.reads[slot]
        words = f"{evidence.cell_words(slot, head)}: {found} {KINDS[kind]} events, {due} expected"
    return Violations(count, words)


def heads_missing(evidence: Evidence) -> Violations:
    """Each traced head is read, no other is."""
    flush = evidence.flush
    if flush.kv_heads is None or not evidence.owed.slots:
        return NONE
    found = set(np.unique(flush.kv_head[evidence.is_read]).tolist())
    silent, strange = sorted({*flush.kv_heads} - found), sorted(found - {*flush.kv_heads})
    if not silent and not strange:
        return NONE
    words = f"head {silent[0]} has no read" if silent else f"head {strange[0]} is not traced"
    return Violations(len(silent) + len(strange), f"{words}; traced are {flush.kv_heads}")


def tokens_not_written(evidence: Evidence) -> Violations:
    """Every scheduled token's K and V are written."""
    return _written(evidence, lambda times: times == 0, "never")


def tokens_written_twice(evidence: Evidence) -> Violations:
    """No token is written twice, and none that was not scheduled."""
    again = _written(evidence, lambda times: times > 1, "more than once")
    strange = _strange_writes(evidence)
    return Violations(again.count + strange.count, again.first or strange.first)


def _written(evidence: Evidence, wrong: Callable[[Int64s], Bools], how: str) -> Violations:
    flush = evidence.flush
    if not flush.traces(WRITE):
        return NONE
    count, words = 0, ""
    for kind in (K_WRITE, V_WRITE):
        bad = wrong(_times_written(evidence, kind))
        if bad.any() and not words:
            first = int(bad.argmax())
            rows = np.repeat(np.arange(len(flush.scheduled)), flush.scheduled)
            row = int(rows[first])
            token = flush.context[row] + first - int(np.searchsorted(rows, row))
            words = (
                f"request {flush.requests[row]}: token {token} was written {how} ({KINDS[kind]})"
            )
        count += int(bad.sum())
    return Violations(count, words)


def _span(evidence: Evidence, at: Int64s) -> tuple[Int64s, Int64s]:
    """The tokens that events wrote, from … to, counted from their row's first scheduled one."""
    flush = evidence.flush
    begin = flush.block_position[at] * flush.block_size + flush.offset_tokens[at]
    begin = begin - flush.context[flush.row[at]]
    return begin, begin + flush.tokens[at]


def _times_written(evidence: Evidence, kind: int) -> Int64s:
    """How often each scheduled token was written, row after row: by adding up where spans lie."""
    flush = evidence.flush
    at = np.flatnonzero((flush.kind == kind) & flush.known_row)
    due = flush.scheduled[flush.row[at]]
    first = (np.cumsum(flush.scheduled) - flush.scheduled)[flush.row[at]]
    begin, end = (first + np.clip(edge, 0, due) for edge in _span(evidence, at))
    total = int(flush.scheduled.sum())
    begins, ends = (np.bincount(edge, minlength=total + 1) for edge in (begin, end))
    return np.cumsum(begins - ends)[:total]


def _strange_writes(evidence: Evidence) -> Violations:
    """Writes of tokens that were not scheduled, or beyond a block's end."""
    flush = evidence.flush
    at = np.flatnonzero(~evidence.is_read & flush.known_row)
    begin, end = _span(evidence, at)
    beyond = flush.offset_tokens[at] + flush.tokens[at] > flush.block_size
    bad = at[(begin < 0) | (end > flush.scheduled[flush.row[at]]) | beyond]
    bad = np.union1d(bad, np.flatnonzero(~evidence.is_read & ~flush.known_row))
    if not len(bad):
        return NONE
    words = f"{evidence.event_words(bad[0])} holds tokens that were not scheduled"
    return Violations(len(bad), words)


def write_malformed(evidence: Evidence) -> Violations:
    """A write is of all heads, and V of a piece is written after its K, by the same worker."""
    flush = evidence.flush
    if not flush.traces(WRITE) or flush.kv_heads is None:
        return NONE
    at = np.flatnonzero(~evidence.is_read)
    of_a_head = at[flush.kv_head[at] != ALL_HEADS]
    if len(of_a_head):
        words = f"{evidence.event_words(of_a_head[0])} is of head {flush.kv_head[of_a_head[0]]}"
        return Violations(len(of_a_head), words)
    k, v = (at[flush.kind[at] == kind] for kind in (K_WRITE, V_WRITE))
    if len(k) != len(v):
        return NONE  # tokens_not_written or tokens_written_twice has the case
    k, v = (one[np.lexsort(_piece(evidence, one))] for one in (k, v))
    alike = np.ones(len(k), np.bool_)
    for of_k, of_v in zip(_piece(evidence, k), _piece(evidence, v), strict=True):
        alike &= of_k == of_v
    bad = np.flatnonzero(alike & (flush.start_ticks[v] < flush.start_ticks[k]))
    if not len(bad):
        return NONE
    return Violations(len(bad), f"{evidence.event_words(v[bad[0]])} begins before its K is written")


def _piece(evidence: Evidence, at: Int64s) -> tuple[Int64s, ...]:
    flush = evidence.flush
    return tuple(
        column[at]
        for column in (flush.offset_tokens, flush.block_position, flush.row, flush.segment)
    )


def tokens_misread(evidence: Evidence) -> Violations:
    """A read takes a block from its first token, up to its end or the tile's."""
    flush, owed, at = evidence.flush, evidence.owed, evidence.due_reads
    own = span(at)
    row, tokens = flush.row[own], flush.tokens[own]
    reach = flush.block_position[own] * flush.block_size + tokens
    good = (flush.offset_tokens[own] == 0) & (tokens == flush.block_size) & (reach <= owed.end[row])
    doubtful = np.flatnonzero(~good)
    if len(doubtful):
        short = (tokens[doubtful] > 0) & (tokens[doubtful] < flush.block_size)
        short &= flush.offset_tokens[at[doubtful]] == 0
        good[doubtful] = short & owed.ends_a_tile(row[doubtful], reach[doubtful])
    bad = at[~good]
    if len(bad):
        first = bad[0]
        found = f"tokens {flush.offset_tokens[first]} + {flush.tokens[first]}"
        words = f"{evidence.event_words(first)}: {found}, where no tile ends"
        return Violations(len(bad), words)
    return _wrong_sums(evidence)


def _wrong_sums(evidence: Evidence) -> Violations:
    """Where each read is one that some tile does, but the tiles together would read otherwise."""
    tokens = evidence.flush.tokens[span(evidence.due_reads)].astype(np.float64)
    sums = np.bincount(evidence.cell, tokens, evidence.found.size).reshape(evidence.shape)
    due = evidence.owed.tokens_read[:, None, None]
    wrong = (evidence.surplus == 0) & (sums != due)
    if not wrong.any():
        return NONE
    slot, head, kind = first_of(wrong)
    found = (
        f"{sums[slot, head, kind]:.0f} tokens in all {KINDS[kind]} events, {due[slot, 0, 0]} due"
    )
    return Violations(int(wrong.sum()), f"{evidence.cell_words(slot, head)}: {found}")


def block_not_in_table(evidence: Evidence) -> Violations:
    """Every event touches the block that the scheduler gave to the request at that position."""
    flush = evidence.flush
    if flush.block_table is None:
        return NONE
    rows = [*flush.block_table, []]  # the last for rows that the batch has not
    lengths = np.array([len(row) for row in rows], np.int64)
    table = np.array([block for row in rows for block in row] or [0], np.int64)
    row = flush.row_or_none
    inside = (flush.block_position >= 0) & (flush.block_position < lengths[row])
    slot = np.where(inside, (np.cumsum(lengths) - lengths)[row] + flush.block_position, 0)
    bad = np.flatnonzero(~inside | (table[slot] != flush.block))
    if not len(bad):
        return NONE
    first = bad[0]
    given = f"the scheduler gave {table[slot[first]]}" if inside[first] else "it has none there"
    words = f"{evidence.event_words(first)}: block {flush.block[first]}, {given}"
    return Violations(len(bad), words)


def records_unreadable(evidence: Evidence) -> Violations:
    """Every record is an event."""
    count = evidence.flush.unreadable
    return Violations(count, f"{count} records are no events") if count else NONE


def layer_wrong(evidence: Evidence) -> Violations:
    """Every event says that it is of the layer whose kernel wrote it."""
    count = evidence.flush.other_layers
    return Violations(count, f"{count} events say they are of another layer") if count else NONE


ORACLES: dict[str, Oracle] = {
    oracle.__name__: oracle
    for oracle in (
        events_dropped,
        records_unreadable,
        k_reads_missing,
        v_reads_missing,
        reads_repeated,
        heads_missing,
        tokens_not_written,
        tokens_written_twice,
        write_malformed,
        tokens_misread,
        block_not_in_table,
        layer_wrong,
        event_of_other_kernel,
        event_outside_kernel,
        events_overlap,
        v_read_before_k,
    )
}
