"""The artifact's kernel traces as flushes of KV events.

What the records lack is derived from the requests' lengths, or stays unknown; the faults in
`trace_import` list it.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from kvscope_kernels import kv_events
from kvscope_paper.unboxkv.trace_json import WARPS, WRITES_KEY, KernelTraces, Record

# What the kernels divided clock64 by, and the fastest clock of the GPU they ran on.
CYCLES_PER_TICK, FASTEST_MHZ = 210, 1410
NS_PER_TICK = CYCLES_PER_TICK / FASTEST_MHZ * 1e3

Segments = list[tuple[tuple[int, int], list[tuple[int, ...]]]]
"""((kernel, worker), events) of each."""


def make_flushes(trace: KernelTraces) -> Iterator[Record]:
    """A flush for each layer of each pass, in order."""
    known: list[dict[int, int]] = []  # by row: the block of each position, as it was written
    for step, passes in groupby(trace.passes, key=itemgetter(0)):
        layers = [layer for _, layer in passes]
        for layer in layers:
            _note_written_blocks(trace, step, layer, known)
        for layer in layers:
            yield _flush(trace, step, layer, known)


def _note_written_blocks(
    trace: KernelTraces, step: int, layer: int, written: list[dict[int, int]]
) -> None:
    """Record the blocks that a layer's writes went to; all layers share one block table."""
    contexts, scheduled = trace.lengths(step, layer)
    written.extend({} for _ in range(len(contexts) - len(written)))
    record = trace.writes.get((step, layer))
    if record is None:
        return
    (blocks, _), _ = trace.layout.places(record[WRITES_KEY])
    for (row, token), block in zip(_tokens(contexts, scheduled), blocks.tolist(), strict=True):
        written[row].setdefault(token // trace.layout.block_size, block)


def _tokens(contexts: list[int], scheduled: list[int]) -> list[tuple[int, int]]:
    """(row, token of the request) of each token of the batch, in its order."""
    return [
        (row, context + i)
        for row, (context, count) in enumerate(zip(contexts, scheduled, strict=True))
        for i in range(count)
    ]


def _flush(trace: KernelTraces, step: int, layer: int, written: list[dict[int, int]]) -> Record:
    contexts, scheduled = trace.lengths(step, layer)
    size = trace.layout.block_size
    lengths = [-(-(c + q) // size) for c, q in zip(contexts, scheduled, strict=True)]
    slots = {kind: trace.slots(step, layer, kind) for kind in ("k", "v")}
    by_reads = [_positions(row) for row in slots["k"]] or [{} for _ in lengths]
    table = [
        [written[row].get(position, by_reads[row].get(position, -1)) for position in range(length)]
        for row, length in enumerate(lengths)
    ]
    records = {
        kv_events.WRITE: trace.writes.get((step, layer)),
        kv_events.ATTENTION: trace.reads.get((step, layer)),
    }
    present = {name: record for name, record in records.items() if record}
    origin = min(_ticks(trace, record) for record in present.values())
    parts = []
    for place, (name, record) in enumerate(present.items()):
        since = _ticks(trace, record) - origin
        if name == kv_events.WRITE:
            parts += _write_segments(trace, record, contexts, scheduled, place, since)
        else:
            parts += _read_segments(slots, table, contexts, size, place, since)
    events = [event for _, of_kind in parts for event in of_kind]
    phase = "prefill" if step == trace.prefill else "decode"
    return {
        **{"version": kv_events.COLUMNS_VERSION, "repeat": 0, "step": step - 1, "layer": layer},
        **{"phase": phase, "block_size": size, "tile_tokens": max(scheduled), "kv_heads": None},
        "requests": [str(row) for row in range(len(lengths))],
        "phases": [phase] * len(lengths),
        **{"context_tokens": contexts, "scheduled_tokens": scheduled},
        "block_table": table if all(block >= 0 for row in table for block in row) else None,
        "origin_ticks": origin,
        "kernels": [{"kernel": n, "start_ticks": None, "end_ticks": None} for n in present],
        "segments": {
            "kernel": [place for (place, _), _ in parts],
            "worker": [worker for (_, worker), _ in parts],
            "events": [len(of_kind) for _, of_kind in parts],
            "dropped": None,
        },
        "events": {
            name: [event[i] for event in events] for i, name in enumerate(kv_events.COLUMNS)
        },
    }


def _ticks(trace: KernelTraces, record: Record) -> int:
    """Launch of the record by the host, in ticks since the first record."""
    since_s = float(record["start_time"]) - trace.began
    return round(since_s * 1e9 / NS_PER_TICK)


def _write_segments(
    trace: KernelTraces,
    record: Record,
    contexts: list[int],
    scheduled: list[int],
    kernel: int,
    since: int,
) -> Segments:
    """A thread block wrote each token."""
    rows = record[WRITES_KEY]
    (k_block, k_slot), (v_block, v_slot) = trace.layout.places(rows)
    places = np.stack([k_block, k_slot, v_block, v_slot, rows[:, 4]], axis=1).tolist()
    parts: Segments = []
    tokens = _tokens(contexts, scheduled)
    for worker, ((row, token), place) in enumerate(zip(tokens, places, strict=True)):
        position, (*at, took) = token // trace.layout.block_size, place
        own: list[tuple[int, ...]] = [
            (kind, row, kv_events.ALL_HEADS, block, position, slot, 1, since, took)
            for kind, block, slot in (
                (kv_events.K_WRITE, at[0], at[1]),
                (kv_events.V_WRITE, at[2], at[3]),
            )
        ]
        parts.append(((kernel, worker), own))
    return parts


def _positions(k_slots: Any) -> dict[int, int]:
    """The block of each position, by the slots of K: warp after warp, n-th block after block."""
    used = np.flatnonzero(k_slots[:, 2] >= 0)
    warp, n = np.divmod(used, len(k_slots) // WARPS)
    return dict(zip((n * WARPS + warp).tolist(), k_slots[used, 2].tolist(), strict=True))


def _read_segments(
    slots: dict[str, Any],
    table: list[list[int]],
    contexts: list[int],
    size: int,
    kernel: int,
    since: int,
) -> Segments:
    """Each warp of a request's thread block read every fourth block.

    The slot of K gives its position; that of V is where its block is in the request's table.
    """
    parts: Segments = []
    for row, blocks in enumerate(table):
        position_of = {block: position for position, block in enumerate(blocks)}
        k_positions = {block: p for p, block in _positions(slots["k"][row]).items()}
        of_warp: dict[int, list[tuple[int, ...]]] = {warp: [] for warp in range(WARPS)}
        for kind, name, positions in (
            (kv_events.K_READ, "k", k_positions),
            (kv_events.V_READ, "v", {**k_positions, **position_of}),
        ):
            for start, took, block in slots[name][row].tolist():
                if block < 0:
                    continue
                position = positions.get(block, kv_events.ALL_HEADS)
                tokens = max(0, min(size, contexts[row] + 1 - position * size))
                where = (block, position, 0, tokens, since + start, took)
                of_warp[position % WARPS].append((kind, row, kv_events.ALL_HEADS, *where))
        parts += [((kernel, row * WARPS + warp), events) for warp, events in of_warp.items()]
    return parts
