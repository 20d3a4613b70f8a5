"""All oracles of KV events, in the order of the checklist."""

from typing import Any

from kvscope.collect.oracles import accesses, blocks, event_times, whole_run
from kvscope.collect.oracles.flush_counts import FlushCounts
from kvscope.collect.oracles.whole_run import RunCounts
from kvscope.events import ATTENTION, WRITE
from kvscope.oracle import Need, Oracle, Violations, verdict
from kvscope.verdict import Verdict

_WORDS = "KV events"
_EVENTS: Need[Any] = Need(_WORDS)
_DROPS: Need[FlushCounts] = Need(_WORDS, lambda c: c.flush.segments.dropped is not None)
# An imported trace has neither heads nor workers, and may lack a kernel or block tables.
_HEADS: Need[FlushCounts] = Need(_WORDS, lambda c: c.flush.kv_heads is not None)
_READS: Need[FlushCounts] = Need(_WORDS, lambda c: c.flush.traces(ATTENTION))
_WRITES: Need[FlushCounts] = Need(_WORDS, lambda c: c.flush.traces(WRITE))
_TABLE: Need[FlushCounts] = Need(_WORDS, lambda c: c.flush.block_table is not None)
_OWN_TABLE: Need[FlushCounts] = Need(_WORDS, lambda c: _TABLE.met(c) and _HEADS.met(c))
_MOVES: Need[FlushCounts] = Need(_WORDS, lambda c: c.moved is not None)
_FOUND: Need[FlushCounts] = Need(
    "KV events, and blocks found in the prefix cache", lambda c: _TABLE.met(c) and bool(c.run.found)
)
_LAYERS: Need[FlushCounts] = Need(_WORDS, lambda c: c.run.traced_layers is not None)
_BLOCKS: Need[FlushCounts] = Need(_WORDS, lambda c: c.run.blocks is not None)
_SCHEDULE: Need[FlushCounts] = Need(_WORDS, lambda c: bool(c.run.schedule))
_PASSES: Need[RunCounts] = Need(_WORDS, lambda c: bool(c.run.passes))
_COUNTED: Need[RunCounts] = Need(_WORDS, lambda c: c.run.counted is not None)
_VIRTUAL: Need[FlushCounts] = Need("modeled KV events of all heads", event_times.is_filled)

OF_FLUSHES: tuple[Oracle[FlushCounts], ...] = (
    Oracle(accesses.events_dropped, _DROPS),
    Oracle(accesses.records_unreadable, _EVENTS),
    Oracle(accesses.k_reads_missing, _READS),
    Oracle(accesses.v_reads_missing, _READS),
    Oracle(accesses.reads_repeated, _EVENTS),
    Oracle(accesses.heads_missing, _HEADS),
    Oracle(accesses.tokens_not_written, _WRITES),
    Oracle(accesses.tokens_written_twice, _EVENTS),
    Oracle(accesses.write_malformed, _HEADS),
    Oracle(accesses.tokens_misread, _READS),
    Oracle(accesses.layer_wrong, _EVENTS),
    Oracle(accesses.layer_unknown, _LAYERS),
    Oracle(accesses.flush_incomplete, _LAYERS),
    Oracle(accesses.batch_differs, _SCHEDULE),
    Oracle(blocks.block_not_in_table, _TABLE),
    Oracle(blocks.block_outside_cache, _BLOCKS),
    Oracle(blocks.block_owned_twice, _OWN_TABLE),
    Oracle(blocks.hit_not_in_table, _FOUND),
    Oracle(blocks.blocks_moved, _MOVES),
    Oracle(blocks.tokens_outside_block, _EVENTS),
    Oracle(event_times.event_of_other_kernel, _HEADS),
    Oracle(event_times.event_outside_kernel, _EVENTS),
    Oracle(event_times.kernel_not_filled, _VIRTUAL),
    Oracle(event_times.worker_repeated, _HEADS),
    Oracle(event_times.events_overlap, _HEADS),
    Oracle(event_times.v_read_before_k, _HEADS),
    Oracle(event_times.kernel_outside_layer, _EVENTS),
)
OF_RUNS: tuple[Oracle[RunCounts], ...] = (
    Oracle(whole_run.passes_missing, _PASSES),
    Oracle(whole_run.counts_differ, _COUNTED),
    Oracle(whole_run.clock_factor_wrong, _EVENTS),
)
ALL_ORACLES: tuple[Oracle[Any], ...] = (*OF_FLUSHES, *OF_RUNS)
NAMES = tuple(oracle.name for oracle in ALL_ORACLES)


def verdicts(account: dict[str, dict[str, Any]]) -> list[Verdict]:
    """The verdict of every oracle, from the account of `Judge.account` that collect.json stores.

    An oracle that is not in the account is not applicable.
    """
    made = []
    for oracle in ALL_ORACLES:
        kept = account.get(oracle.name)
        found = None
        if kept is not None and (kept.get("looked", 1) or kept["violations"]):
            found = Violations(kept["violations"], kept["first"])
        made.append(verdict(oracle, found))
    return made
