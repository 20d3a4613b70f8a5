"""All oracles of KV events, in the order of the checklist."""

from typing import Any

from kvscope.collect.oracles import of_accesses, of_blocks, of_runs, of_times
from kvscope.collect.oracles.flush_counts import FlushCounts
from kvscope.collect.oracles.of_runs import RunCounts
from kvscope.oracle import Oracle, Verdict, Violations, verdict

_NEEDS = "KV events"

OF_FLUSHES: tuple[Oracle[FlushCounts], ...] = tuple(
    Oracle(look, _NEEDS)
    for look in (
        of_accesses.events_dropped,
        of_accesses.records_unreadable,
        of_accesses.k_reads_missing,
        of_accesses.v_reads_missing,
        of_accesses.reads_repeated,
        of_accesses.heads_missing,
        of_accesses.tokens_not_written,
        of_accesses.tokens_written_twice,
        of_accesses.write_malformed,
        of_accesses.tokens_misread,
        of_accesses.layer_wrong,
        of_accesses.layer_unknown,
        of_accesses.batch_differs,
        of_blocks.block_not_in_table,
        of_blocks.block_outside_cache,
        of_blocks.block_owned_twice,
        of_blocks.blocks_moved,
        of_blocks.tokens_outside_block,
        of_times.event_of_other_kernel,
        of_times.event_outside_kernel,
        of_times.worker_repeated,
        of_times.events_overlap,
        of_times.v_read_before_k,
        of_times.kernel_outside_layer,
    )
)
OF_RUNS: tuple[Oracle[RunCounts], ...] = (
    Oracle(of_runs.passes_missing, _NEEDS),
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
