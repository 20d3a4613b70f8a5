"""Oracles of event times: events are within their kernel, in order, and K precedes V.

The events of a segment come from one worker, which makes them one after another and records them in
order. Imported traces without heads have no such segments.
"""

import numpy as np
import numpy.typing as npt

from kvscope.api.oracles import oracle
from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Int64s
from kvscope_kernels.collect.flushes import Flush
from kvscope_kernels.oracles.flush_counts import FlushCounts

# Two readings of the same clock, one by the engine's Python, one beside the kernel.
LAYER_TOLERANCE_NS = 1_000


def event_of_other_kernel(counts: FlushCounts) -> oracle.Violations:
    """The write kernel only writes; the attention kernel only reads, and starts after it."""
    flush = counts.flush
    names = [kernel.name for kernel in flush.kernels]
    reads = np.array([name == kv_events.ATTENTION for name in names])[flush.segments.kernel]
    bad = np.flatnonzero(flush.of_segments(reads) != counts.is_read)
    if len(bad):
        owner = names[flush.segments.kernel[flush.segment[bad[0]]]]
        return oracle.Violations(
            len(bad), f"{counts.describe_event(bad[0])} is from kernel '{owner}'"
        )
    bounds = {kernel.name: (kernel.start_ticks, kernel.end_ticks) for kernel in flush.kernels}
    written, begun = (
        bounds.get(kv_events.WRITE, (None, None))[1],
        bounds.get(kv_events.ATTENTION, (None, None))[0],
    )
    if written is not None and begun is not None and begun < written:
        return oracle.Violations(
            1, f"attention begins at tick {begun}, the write ends at {written}"
        )
    return oracle.NONE


def event_outside_kernel(counts: FlushCounts) -> oracle.Violations | None:
    """Every event is within the interval of its kernel and, on a GPU, of its thread block."""
    flush = counts.flush
    bounds = [(k.start_ticks, k.end_ticks) for k in flush.kernels]
    if not bounds or any(None in bound for bound in bounds):
        return None
    least, most = np.array(bounds, np.int64).T[:, flush.segments.kernel]
    timers = flush.segments.timers
    outside = oracle.NONE
    if timers is not None:
        start, end = timers["start_timer"], timers["end_timer"]
        astray = (start < least) | (end > most) | (end < start)
        outside = _outside(flush, np.flatnonzero(astray))
        least, most = timers["start_clock"], timers["end_clock"]
    early = flush.start_ticks < flush.of_segments(least)
    late = flush.end_ticks > flush.of_segments(most)

    def words(event: int) -> str:
        within = f"{least[flush.segment[event]]} … {most[flush.segment[event]]}"
        interval = f"{flush.start_ticks[event]} … {flush.end_ticks[event]}"
        return f"{counts.describe_event(event)}: ticks {interval}, its kernel has {within}"

    return oracle.violations(np.flatnonzero(early | late), words) + outside


def is_filled(counts: FlushCounts) -> bool:
    """True if events fill their kernels: modeled events, of all heads."""
    return counts.run.clock.virtual and counts.run.every_head


def kernel_not_filled(counts: FlushCounts) -> oracle.Violations:
    """The events of a modeled kernel begin with it and end with it."""
    flush = counts.flush
    owner = flush.segments.kernel[flush.segment]
    wrong = [
        kernel.name
        for number, kernel in enumerate(flush.kernels)
        if (of_segment := owner == number).any()
        and (kernel.start_ticks, kernel.end_ticks)
        != (flush.start_ticks[of_segment].min(), flush.end_ticks[of_segment].max())
    ]
    return oracle.violations(wrong, "the events of kernel '{}' do not fill it".format)


def _outside(flush: Flush, segments: npt.NDArray[np.intp]) -> oracle.Violations:
    workers = flush.segments.worker[segments]
    return oracle.violations(workers, "thread block {} ran outside its kernel's interval".format)


def worker_repeated(counts: FlushCounts) -> oracle.Violations:
    """No two segments of a kernel have the same worker.

    The order of events is defined within a segment only.
    """
    flush, segments = counts.flush, counts.flush.segments
    owners = (segments.kernel << 32) + segments.worker  # both have 31 bits
    numbers, times = np.unique(owners, return_counts=True)

    def words(place: int) -> str:
        kernel, worker = divmod(int(numbers[place]), 1 << 32)
        segments = f"segments of kernel '{flush.kernels[kernel].name}'"
        return f"{times[place]} {segments} have worker {worker}"

    return oracle.violations(np.flatnonzero(times > 1), words)


def events_overlap(counts: FlushCounts) -> oracle.Violations:
    """The events of a worker are in order of time and do not overlap."""
    flush = counts.flush
    overlaps = flush.start_ticks[1:] < flush.end_ticks[:-1]

    def words(event: int) -> str:
        worker = flush.segments.worker[flush.segment[event]]
        begins = f"{counts.describe_event(event)} by worker {worker} begins"
        before = f"the event before it ends at {flush.end_ticks[event - 1]}"
        return f"{begins} at tick {flush.start_ticks[event]}, {before}"

    same_worker = flush.segment[1:] == flush.segment[:-1]
    return oracle.violations(np.flatnonzero(overlaps & same_worker) + 1, words)


def v_read_before_k(counts: FlushCounts) -> oracle.Violations:
    """A worker reads V of a block after its K, for the same tile and head."""
    flush = counts.flush
    if not counts.is_read.any():
        return oracle.NONE
    v, k = _paired(counts)

    def words(pair: int) -> str:
        begin, end = flush.start_ticks[v[pair]], flush.end_ticks[k[pair]]
        return f"{counts.describe_event(v[pair])} begins at tick {begin}, its K read ends at {end}"

    return oracle.violations(np.flatnonzero(flush.start_ticks[v] < flush.end_ticks[k]), words)


def kernel_outside_layer(counts: FlushCounts) -> oracle.Violations | None:
    """On a CPU, every kernel is within its layer on the host's clock.

    The tolerance is the uncertainty of the clock plus 1 µs.
    """
    clock = counts.run.clock
    out_ns = counts.run.layers.overhang_ns(counts.flush, counts.intervals_ns)
    if out_ns is None:
        return None
    if out_ns <= clock.uncertainty_ns + LAYER_TOLERANCE_NS:
        return oracle.NONE
    return oracle.Violations(1, f"a kernel is {out_ns} ns outside its layer")


def _paired(counts: FlushCounts) -> tuple[Int64s, Int64s]:
    """The places of V reads and of their K reads: same segment, row, head, position and tile.

    Usually each run of V reads follows the run of its K reads, and no sorting is needed.
    """
    flush, reads = counts.flush, counts.reads
    kind = reads.kind[reads.run_first]
    owner = (flush.segment, flush.row, flush.kv_head, flush.block_position)
    columns = [reads.run_length, *map(reads.first, owner)]
    alternate = np.array_equal(kind, np.resize([kv_events.K_READ, kv_events.V_READ], len(kind)))
    if alternate and all(np.array_equal(column[::2], column[1::2]) for column in columns):
        return reads.of_runs(kind == kv_events.V_READ), reads.of_runs(kind == kv_events.K_READ)
    return _paired_by_sorting(counts)


def _paired_by_sorting(counts: FlushCounts) -> tuple[Int64s, Int64s]:
    """Places of V reads and their K reads in any order: n-th of a (segment, row, head, position).

    Places with unequal numbers of K and V reads are left out; k_reads_missing, v_reads_missing or
    reads_repeated report them.
    """
    flush, at = counts.flush, counts.reads.at
    owner = np.stack(
        [c[at] for c in (flush.segment, flush.row, flush.kv_head, flush.block_position)]
    )
    _, key = np.unique(owner, axis=1, return_inverse=True)
    key = key.reshape(-1)
    kind = flush.kind[at]
    of_k, of_v = (
        np.bincount(key[kind == read], minlength=key.max() + 1)
        for read in (kv_events.K_READ, kv_events.V_READ)
    )
    keep = of_k[key] == of_v[key]
    order = np.argsort(key[keep], kind="stable")
    places, kinds = at[keep][order], kind[keep][order]
    return places[kinds == kv_events.V_READ], places[kinds == kv_events.K_READ]
