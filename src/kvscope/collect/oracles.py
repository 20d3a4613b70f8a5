"""Oracles of accesses: each block and token is read and written as the batch demands.

What each demands is in `docs/METRICS.md` too, and how the events come about in
`docs/TRACE_SPEC.md`. Where a premise is unknown (an imported trace has no heads, say) the oracle
does not apply.
"""

from collections.abc import Callable

import numpy as np

from kvscope.collect.arrays import Bools, Int64s
from kvscope.collect.evidence import Evidence, first_of, span
from kvscope.collect.oracles_of_blocks import ORACLES_OF_BLOCKS
from kvscope.collect.oracles_of_time import ORACLES_OF_TIME
from kvscope.events import ALL_HEADS, ATTENTION, K_READ, K_WRITE, KINDS, V_READ, V_WRITE, WRITE
from kvscope.oracle import NONE, Oracle, Violations


def events_dropped(evidence: Evidence) -> Violations | None:
    """No event was dropped for want of room."""
    segments = evidence.flush.segments
    if segments.dropped is None:
        return None
    if not segments.dropped.any():
        return NONE
    worst = int(segments.dropped.argmax())
    words = f"worker {segments.worker[worst]} dropped {segments.dropped[worst]} events"
    return Violations(int(segments.dropped.sum()), words)


def k_reads_missing(evidence: Evidence) -> Violations | None:
    """Every tile reads K of every block up to its end, for every traced head."""
    return _reads_missing(evidence, K_READ)


def v_reads_missing(evidence: Evidence) -> Violations | None:
    """Every tile reads V of every block up to its end, for every traced head."""
    return _reads_missing(evidence, V_READ)


def _reads_missing(evidence: Evidence, kind: int) -> Violations | None:
    if not evidence.flush.traces(ATTENTION):
        return None
    missing = -evidence.surplus[:, :, kind].clip(max=0)
    count = int(missing.sum())
    if not count:
        return NONE
    slot, head = first_of(missing > 0)
    found, due = evidence.found[slot, head, kind], evidence.owed.reads[slot]
    words = f"{evidence.cell_words(slot, head)}: {found} {KINDS[kind]} events, {due} expected"
    return Violations(count, words)


def reads_repeated(evidence: Evidence) -> Violations | None:
    """No block is read more often than tiles reach it, and none that the batch has not."""
    strangers = np.flatnonzero(evidence.is_read & ~evidence.in_context)
    repeated = evidence.surplus.clip(min=0)
    count = int(repeated.sum()) + len(strangers)
    if not count:
        return NONE if evidence.flush.traces(ATTENTION) else None
    if len(strangers):
        words = f"{evidence.event_words(strangers[0])}, which the batch has not"
    else:
        slot, head, kind = first_of(repeated > 0)
        found, due = evidence.found[slot, head, kind], evidence.owed.reads[slot]
        words = f"{evidence.cell_words(slot, head)}: {found} {KINDS[kind]} events, {due} expected"
    return Violations(count, words)


def heads_missing(evidence: Evidence) -> Violations | None:
    """Each traced head is read, no other is."""
    flush = evidence.flush
    if flush.kv_heads is None:
        return None
    if not evidence.owed.slots:
        return NONE
    found = set(np.unique(flush.kv_head[evidence.is_read]).tolist())
    silent, strange = sorted({*flush.kv_heads} - found), sorted(found - {*flush.kv_heads})
    if not silent and not strange:
        return NONE
    words = f"head {silent[0]} has no read" if silent else f"head {strange[0]} is not traced"
    return Violations(len(silent) + len(strange), f"{words}; traced are {flush.kv_heads}")


def tokens_not_written(evidence: Evidence) -> Violations | None:
    """Every scheduled token's K and V are written."""
    return _written(evidence, lambda times: times == 0, "never")


def tokens_written_twice(evidence: Evidence) -> Violations | None:
    """No token is written twice, and none that was not scheduled."""
    again = _written(evidence, lambda times: times > 1, "more than once")
    strange = _strange_writes(evidence)
    if again is None:
        return strange or None
    return Violations(again.count + strange.count, again.first or strange.first)


def _written(evidence: Evidence, wrong: Callable[[Int64s], Bools], how: str) -> Violations | None:
    flush = evidence.flush
    if not flush.traces(WRITE):
        return None
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
    """Writes of tokens that were not scheduled."""
    flush = evidence.flush
    at = np.flatnonzero(~evidence.is_read & flush.known_row)
    begin, end = _span(evidence, at)
    bad = at[(begin < 0) | (end > flush.scheduled[flush.row[at]])]
    bad = np.union1d(bad, np.flatnonzero(~evidence.is_read & ~flush.known_row))
    if not len(bad):
        return NONE
    words = f"{evidence.event_words(bad[0])} holds tokens that were not scheduled"
    return Violations(len(bad), words)


def write_malformed(evidence: Evidence) -> Violations | None:
    """A write is of all heads, and V of a piece is written after its K, by the same worker."""
    flush = evidence.flush
    if flush.kv_heads is None:
        return None
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


def tokens_misread(evidence: Evidence) -> Violations | None:
    """A read takes a block from its first token, up to its end or the tile's."""
    flush, owed, at = evidence.flush, evidence.owed, evidence.due_reads
    if not flush.traces(ATTENTION):
        return None
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


def records_unreadable(evidence: Evidence) -> Violations | None:
    """Every record is an event."""
    count = evidence.flush.unreadable
    return Violations(count, f"{count} records are no events") if count else NONE


def layer_wrong(evidence: Evidence) -> Violations | None:
    """Every event says that it is of the layer whose kernel wrote it."""
    count = evidence.flush.other_layers
    return Violations(count, f"{count} events say they are of another layer") if count else NONE


def layer_unknown(evidence: Evidence) -> Violations | None:
    """Every flush is of a layer that the model has and that was traced."""
    traced, layer = evidence.known.traced_layers, evidence.flush.layer
    if traced is None:
        return None
    return NONE if layer in traced else Violations(1, f"layer {layer}; traced are {traced}")


def batch_differs(evidence: Evidence) -> Violations | None:
    """A flush has the requests, phases, contexts and tokens that the scheduler gave the pass."""
    schedule = evidence.known.schedule
    if schedule is None or not schedule:
        return None
    difference = schedule.difference(evidence.flush)
    return Violations(1, difference) if difference else NONE


ORACLES: tuple[Oracle[Evidence], ...] = (
    *(
        Oracle(look, "KV events")
        for look in (
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
            layer_wrong,
            layer_unknown,
            batch_differs,
        )
    ),
    *ORACLES_OF_BLOCKS,
    *ORACLES_OF_TIME,
)
