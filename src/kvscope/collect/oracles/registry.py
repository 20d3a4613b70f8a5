"""All oracles of KV events, in the order of the checklist."""

from typing import Any

from kvscope.collect.oracles import of_accesses, of_blocks, of_runs, of_times
from kvscope.collect.oracles.flush_counts import FlushCounts
from kvscope.collect.oracles.of_runs import RunCounts
from kvscope.events import ATTENTION, WRITE
from kvscope.oracle import Oracle, Verdict, Violations, verdict

_NEEDS = "KV events"


def _has_heads(counts: FlushCounts) -> bool:
    """Whether heads are told apart, and workers: an imported trace does neither."""
    return counts.flush.kv_heads is not None


def _reads(counts: FlushCounts) -> bool:
    return counts.flush.traces(ATTENTION)


def _writes(counts: FlushCounts) -> bool:
    return counts.flush.traces(WRITE)


def _has_table(counts: FlushCounts) -> bool:
    return counts.flush.block_table is not None


OF_FLUSHES: tuple[Oracle[FlushCounts], ...] = (
    Oracle(of_accesses.events_dropped, _NEEDS, lambda c: c.flush.segments.dropped is not None),
    Oracle(of_accesses.records_unreadable, _NEEDS),
    Oracle(of_accesses.k_reads_missing, _NEEDS, _reads),
    Oracle(of_accesses.v_reads_missing, _NEEDS, _reads),
    Oracle(of_accesses.reads_repeated, _NEEDS),
    Oracle(of_accesses.heads_missing, _NEEDS, _has_heads),
    Oracle(of_accesses.tokens_not_written, _NEEDS, _writes),
    Oracle(of_accesses.tokens_written_twice, _NEEDS),
    Oracle(of_accesses.write_malformed, _NEEDS, _has_heads),
    Oracle(of_accesses.tokens_misread, _NEEDS, _reads),
    Oracle(of_accesses.layer_wrong, _NEEDS),
    Oracle(of_accesses.layer_unknown, _NEEDS, lambda c: c.run.traced_layers is not None),
    Oracle(of_accesses.batch_differs, _NEEDS, lambda c: bool(c.run.schedule)),
    Oracle(of_blocks.block_not_in_table, _NEEDS, _has_table),
    Oracle(of_blocks.block_outside_cache, _NEEDS, lambda c: c.run.blocks is not None),
    Oracle(of_blocks.block_owned_twice, _NEEDS, lambda c: _has_table(c) and _has_heads(c)),
    Oracle(of_blocks.blocks_moved, _NEEDS, lambda c: c.moved is not None),
    Oracle(of_blocks.tokens_outside_block, _NEEDS),
    Oracle(of_times.event_of_other_kernel, _NEEDS, _has_heads),
    Oracle(of_times.event_outside_kernel, _NEEDS),
    Oracle(of_times.worker_repeated, _NEEDS, _has_heads),
    Oracle(of_times.events_overlap, _NEEDS, _has_heads),
    Oracle(of_times.v_read_before_k, _NEEDS, _has_heads),
    Oracle(of_times.kernel_outside_layer, _NEEDS),
)
OF_RUNS: tuple[Oracle[RunCounts], ...] = (
    Oracle(of_runs.passes_missing, _NEEDS, lambda c: bool(c.run.passes)),
    Oracle(of_runs.clock_factor_wrong, _NEEDS),
)
ALL_ORACLES: tuple[Oracle[Any], ...] = (*OF_FLUSHES, *OF_RUNS)
NAMES = tuple(oracle.name for oracle in ALL_ORACLES)


def verdicts(account: dict[str, dict[str, Any]]) -> list[Verdict]:
    """Every oracle's verdict, from what `Judge.verdict` gave and collect.json has kept.

    An oracle that the account does not know of did not apply when it was written.
    """
    made = []
    for oracle in ALL_ORACLES:
        kept = account.get(oracle.name)
        found = None
        if kept is not None and (kept.get("looked", 1) or kept["violations"]):
            found = Violations(kept["violations"], kept["first"])
        made.append(verdict(oracle, found))
    return made
