"""Oracles about when events happened: in their kernel, one after the other, K before V.

Events of one segment come from one worker, which does one thing at a time and writes it down in
order. An imported trace that does not tell heads apart has no such segments.
"""

import numpy as np
import numpy.typing as npt

from kvscope.collect.arrays import Int64s
from kvscope.collect.evidence import Evidence
from kvscope.collect.flushes import Flush
from kvscope.events import ATTENTION, K_READ, V_READ, WRITE
from kvscope.oracle import NONE, Oracle, Violations

# Two readings of the same clock, one by the engine's Python, one beside the kernel.
LAYER_TOLERANCE_NS = 1_000


def event_of_other_kernel(evidence: Evidence) -> Violations | None:
    """The write kernel writes and the attention kernel reads, the one before the other."""
    flush = evidence.flush
    names = [kernel.name for kernel in flush.kernels]
    if flush.kv_heads is None:
        return None
    reads = np.array([name == ATTENTION for name in names])[flush.segments.kernel]
    bad = np.flatnonzero(reads[flush.segment] != evidence.is_read)
    if len(bad):
        owner = names[flush.segments.kernel[flush.segment[bad[0]]]]
        return Violations(len(bad), f"{evidence.event_words(bad[0])} is of kernel '{owner}'")
    bounds = {kernel.name: (kernel.start_ticks, kernel.end_ticks) for kernel in flush.kernels}
    written, begun = bounds.get(WRITE, (None, None))[1], bounds.get(ATTENTION, (None, None))[0]
    if written is not None and begun is not None and begun < written:
        return Violations(1, f"attention begins at tick {begun}, the write ends at {written}")
    return NONE


def event_outside_kernel(evidence: Evidence) -> Violations | None:
    """Every event begins and ends within its kernel; on a GPU, within its thread block too."""
    flush = evidence.flush
    bounds = [(k.start_ticks, k.end_ticks) for k in flush.kernels]
    if not bounds or any(None in bound for bound in bounds):
        return None
    least, most = np.array(bounds, np.int64).T[:, flush.segments.kernel]
    timers = flush.segments.timers
    strays = NONE
    if timers is not None:
        start, end = timers["start_timer"], timers["end_timer"]
        astray = (start < least) | (end > most) | (end < start)
        strays = _strays(flush, np.flatnonzero(astray))
        least, most = timers["start_clock"], timers["end_clock"]
    early = flush.start_ticks < np.repeat(least, flush.segments.events)
    late = flush.end_ticks > np.repeat(most, flush.segments.events)
    bad = np.flatnonzero(early | late)
    if not len(bad):
        return strays
    first = int(bad[0])
    within = f"{least[flush.segment[first]]} … {most[flush.segment[first]]}"
    interval = f"{flush.start_ticks[first]} … {flush.end_ticks[first]}"
    words = f"{evidence.event_words(first)}: ticks {interval}, its kernel's are {within}"
    return Violations(len(bad) + strays.count, words)


def _strays(flush: Flush, segments: npt.NDArray[np.intp]) -> Violations:
    if not len(segments):
        return NONE
    worker = flush.segments.worker[segments[0]]
    return Violations(len(segments), f"thread block {worker} ran outside of its kernel's interval")


def worker_repeated(evidence: Evidence) -> Violations | None:
    """No two segments of a kernel are of the same worker."""
    flush, segments = evidence.flush, evidence.flush.segments
    if flush.kv_heads is None:
        return None
    owners = np.stack([segments.kernel, segments.worker])
    found, counts = np.unique(owners, axis=1, return_counts=True)
    again = np.flatnonzero(counts > 1)
    if not len(again):
        return NONE
    kernel, worker = found[:, again[0]].tolist()
    words = f"{counts[again[0]]} segments of kernel '{flush.kernels[kernel].name}'"
    return Violations(len(again), f"{words} are of worker {worker}")


def events_overlap(evidence: Evidence) -> Violations | None:
    """A worker's events are in order of time and do not overlap."""
    flush = evidence.flush
    if flush.kv_heads is None:
        return None
    overlaps = flush.start_ticks[1:] < flush.end_ticks[:-1]
    bad = np.flatnonzero(overlaps & (flush.segment[1:] == flush.segment[:-1])) + 1
    if not len(bad):
        return NONE
    first = int(bad[0])
    worker = flush.segments.worker[flush.segment[first]]
    words = (
        f"{evidence.event_words(first)} by worker {worker} begins at tick "
        f"{flush.start_ticks[first]}, the event before it ends at {flush.end_ticks[first - 1]}"
    )
    return Violations(len(bad), words)


def v_read_before_k(evidence: Evidence) -> Violations | None:
    """A worker reads V of a block after it has read K of it for the same tile and head."""
    flush = evidence.flush
    if flush.kv_heads is None:
        return None
    if not evidence.is_read.any():
        return NONE
    v, k = _paired(evidence)
    bad = np.flatnonzero(flush.start_ticks[v] < flush.end_ticks[k])
    if not len(bad):
        return NONE
    begin, end = flush.start_ticks[v[bad[0]]], flush.end_ticks[k[bad[0]]]
    words = f"{evidence.event_words(v[bad[0]])} begins at tick {begin}, its K read ends at {end}"
    return Violations(len(bad), words)


def kernel_outside_layer(evidence: Evidence) -> Violations | None:
    """On a CPU, every kernel lies within its layer on the host's clock."""
    clock = evidence.known.clock
    out_ns = evidence.known.layers.sticking_out_ns(evidence.flush, clock)
    if out_ns is None:
        return None
    if out_ns <= clock.uncertainty_ns + LAYER_TOLERANCE_NS:
        return NONE
    return Violations(1, f"a kernel lies {out_ns} ns outside of its layer")


def _paired(evidence: Evidence) -> tuple[Int64s, Int64s]:
    """The places of V reads and of the K reads of the same segment, row, head, position, tile.

    Mostly each run of V reads follows its K reads, block for block: then there is nothing to sort.
    """
    flush, reads = evidence.flush, evidence.reads
    first = np.flatnonzero(reads.run_begins)
    run = np.cumsum(reads.run_begins) - 1
    v = np.flatnonzero(reads.kind == V_READ)
    k = v - np.diff(first, append=len(run))[run[v]]
    if 2 * len(v) != len(run) or k.min() < 0:
        return _paired_by_sorting(evidence)
    v, k = reads.at[v], reads.at[k]
    alike = flush.kind[k] == K_READ
    for column in (flush.segment, flush.row, flush.kv_head, flush.block_position):
        alike &= column[v] == column[k]
    return (v, k) if alike.all() else _paired_by_sorting(evidence)


def _paired_by_sorting(evidence: Evidence) -> tuple[Int64s, Int64s]:
    """The same for any order: the n-th V read of a (segment, row, head, position) and its n-th K.

    Where there are not as many of the one as of the other, tiles cannot be told: reads_missing or
    reads_repeated has the case, and no pair is made of it.
    """
    flush, at = evidence.flush, evidence.reads.at
    owner = np.stack(
        [c[at] for c in (flush.segment, flush.row, flush.kv_head, flush.block_position)]
    )
    _, key = np.unique(owner, axis=1, return_inverse=True)
    key = key.reshape(-1)
    kind = flush.kind[at]
    counts = [np.bincount(key[kind == one], minlength=key.max() + 1) for one in (K_READ, V_READ)]
    keep = counts[0][key] == counts[1][key]
    order = np.argsort(key[keep], kind="stable")
    places, kinds = at[keep][order], kind[keep][order]
    return places[kinds == V_READ], places[kinds == K_READ]


ORACLES_OF_TIME: tuple[Oracle[Evidence], ...] = tuple(
    Oracle(look, "KV events")
    for look in (
        event_of_other_kernel,
        event_outside_kernel,
        worker_repeated,
        events_overlap,
        v_read_before_k,
        kernel_outside_layer,
    )
)


def gaps(evidence: Evidence) -> dict[int, tuple[Int64s, Int64s]]:
    """Of each kind: ticks between an event's end and the start of the one its worker does next,
    and ticks that the former took.

    Of reads, where the worker goes on to the next block of the same request and head: from K to K,
    from V to V, or, where K and V take turns, from V to the next block's K. Of writes, all.
    """
    flush, reads = evidence.flush, evidence.reads
    if flush.kv_heads is None or len(flush) < 2:
        return {}
    onward = reads.together & (reads.onward == 1) & (reads.kind[1:] <= reads.kind[:-1])
    one, other = reads.at[:-1][onward], reads.at[1:][onward]
    writes = np.flatnonzero(~evidence.is_read)
    neighbours = (np.diff(writes) == 1) & (np.diff(flush.segment[writes]) == 0)
    one = np.concatenate([one, writes[:-1][neighbours]])
    other = np.concatenate([other, writes[1:][neighbours]])
    between = flush.start_ticks[other] - flush.end_ticks[one]
    took, kind = flush.duration_ticks[one], flush.kind[one]
    return {k: (between[kind == k], took[kind == k]) for k in np.unique(kind).tolist()}
