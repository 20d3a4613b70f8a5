"""All oracles of KV events, in the order of the checklist."""

from typing import Any

from kvscope.api.oracles import oracle
from kvscope_kernels import kv_events
from kvscope_kernels.oracles import accesses, blocks, event_times, whole_run
from kvscope_kernels.oracles.flush_counts import FlushCounts
from kvscope_kernels.oracles.whole_run import RunCounts

_WORDS = "KV events"
_EVENTS: oracle.Need[Any] = oracle.Need(_WORDS)
_DROPS: oracle.Need[FlushCounts] = oracle.Need(
    _WORDS, lambda c: c.flush.segments.dropped is not None
)
# An imported trace has neither heads nor workers, and may lack a kernel or block tables.
_HEADS: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: c.flush.kv_heads is not None)
_READS: oracle.Need[FlushCounts] = oracle.Need(
    _WORDS, lambda c: c.flush.traces(kv_events.ATTENTION)
)
_WRITES: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: c.flush.traces(kv_events.WRITE))
_TABLE: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: c.flush.block_table is not None)
_OWN_TABLE: oracle.Need[FlushCounts] = oracle.Need(
    _WORDS, lambda c: _TABLE.met(c) and _HEADS.met(c)
)
_MOVES: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: c.moved is not None)
_FOUND: oracle.Need[FlushCounts] = oracle.Need(
    "KV events, and blocks found in the prefix cache", lambda c: _TABLE.met(c) and bool(c.run.found)
)
_LAYERS: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: c.run.traced_layers is not None)
_BLOCKS: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: c.run.blocks is not None)
_SCHEDULE: oracle.Need[FlushCounts] = oracle.Need(_WORDS, lambda c: bool(c.run.schedule))
_PASSES: oracle.Need[RunCounts] = oracle.Need(_WORDS, lambda c: bool(c.run.passes))
_COUNTED: oracle.Need[RunCounts] = oracle.Need(_WORDS, lambda c: c.run.counted is not None)
_VIRTUAL: oracle.Need[FlushCounts] = oracle.Need(
    "modeled KV events of all heads", event_times.is_filled
)

OF_FLUSHES: tuple[oracle.Oracle[FlushCounts], ...] = (
    oracle.Oracle(accesses.events_dropped, _DROPS),
    oracle.Oracle(accesses.records_unreadable, _EVENTS),
    oracle.Oracle(accesses.k_reads_missing, _READS),
    oracle.Oracle(accesses.v_reads_missing, _READS),
    oracle.Oracle(accesses.reads_repeated, _EVENTS),
    oracle.Oracle(accesses.heads_missing, _HEADS),
    oracle.Oracle(accesses.tokens_not_written, _WRITES),
    oracle.Oracle(accesses.tokens_written_twice, _EVENTS),
    oracle.Oracle(accesses.write_malformed, _HEADS),
    oracle.Oracle(accesses.tokens_misread, _READS),
    oracle.Oracle(accesses.layer_wrong, _EVENTS),
    oracle.Oracle(accesses.layer_unknown, _LAYERS),
    oracle.Oracle(accesses.flush_incomplete, _LAYERS),
    oracle.Oracle(accesses.batch_differs, _SCHEDULE),
    oracle.Oracle(blocks.block_not_in_table, _TABLE),
    oracle.Oracle(blocks.block_outside_cache, _BLOCKS),
    oracle.Oracle(blocks.block_owned_twice, _OWN_TABLE),
    oracle.Oracle(blocks.hit_not_in_table, _FOUND),
    oracle.Oracle(blocks.blocks_moved, _MOVES),
    oracle.Oracle(blocks.tokens_outside_block, _EVENTS),
    oracle.Oracle(event_times.event_of_other_kernel, _HEADS),
    oracle.Oracle(event_times.event_outside_kernel, _EVENTS),
    oracle.Oracle(event_times.kernel_not_filled, _VIRTUAL),
    oracle.Oracle(event_times.worker_repeated, _HEADS),
    oracle.Oracle(event_times.events_overlap, _HEADS),
    oracle.Oracle(event_times.v_read_before_k, _HEADS),
    oracle.Oracle(event_times.kernel_outside_layer, _EVENTS),
)
OF_RUNS: tuple[oracle.Oracle[RunCounts], ...] = (
    oracle.Oracle(whole_run.passes_missing, _PASSES),
    oracle.Oracle(whole_run.counts_differ, _COUNTED),
    oracle.Oracle(whole_run.clock_factor_wrong, _EVENTS),
)
ALL_ORACLES: tuple[oracle.Oracle[Any], ...] = (*OF_FLUSHES, *OF_RUNS)
NAMES = tuple(each.name for each in ALL_ORACLES)
