"""All oracles of a run's host tables, in the order of the checklist."""

from collections.abc import Callable

from kvscope.analyse.oracles import (
    of_batches,
    of_cache,
    of_copies,
    of_outputs,
    of_preemptions,
    of_repeats,
    of_settings,
    of_times,
    of_values,
)
from kvscope.analyse.oracles.recorded_run import RecordedRun
from kvscope.analyse.records import Records
from kvscope.oracle import VIOLATED, Need, Oracle, Verdict, judge, verdict

RunNeed = Need[RecordedRun]


def _recorded(words: str, also: Callable[[RecordedRun], bool] = lambda _: True) -> RunNeed:
    """A need that no import meets: of what kvscope records, others publish little."""
    return Need(words, lambda run: not run.imported and also(run))


_PASSES = _recorded("passes recorded by kvscope")
_SETTINGS = _recorded("an experiment.yaml", lambda run: bool(run.records.settings))
_LAYERS = _recorded("times of the layers", lambda run: bool(run.engine.get("layers")))
_POOL = _recorded("a host pool", lambda run: bool(run.steps["host_blocks_total"].any()))
_ABORTED = _recorded("requests that were given up")
_PREEMPTIONS = _recorded("preemptions recorded by kvscope")
_ANY_PREEMPTION = _recorded(_PREEMPTIONS.words, lambda run: not run.preemptions.empty)
_COPIES = _recorded(
    "requests that were swapped", lambda run: bool(run.preemptions["copy_start_s"].notna().any())
)
_REQUESTS: RunNeed = Need("requests", lambda run: not run.requests.empty)
_REPEATS: RunNeed = Need(
    "two repeats or more", lambda run: run.records.served["repeat"].nunique() >= 2
)
_LEAKS: RunNeed = Need(_PASSES.words, lambda run: "leaked_blocks" in run.engine)

# What the others take for granted.
ROWS: tuple[Oracle[RecordedRun], ...] = (
    Oracle(of_values.row_repeated, _PASSES),
    Oracle(of_values.value_missing),
    Oracle(of_values.value_negative, _PASSES),
    Oracle(of_values.row_without_owner, _PASSES),
)
ORACLES: tuple[Oracle[RecordedRun], ...] = (
    Oracle(of_settings.settings_differ, _SETTINGS),
    Oracle(of_settings.limit_exceeded, _SETTINGS),
    Oracle(of_values.time_source_differs),
    Oracle(of_repeats.repeats_differ, _PASSES),
    Oracle(of_times.passes_overlap, _PASSES),
    Oracle(of_times.passes_apart, _PASSES),
    Oracle(of_times.stalled_wrong, Need("passes")),
    Oracle(of_times.layers_outside_pass, _LAYERS),
    Oracle(of_times.request_times_differ, _REQUESTS),
    Oracle(of_times.given_up_wrong, _ABORTED),
    Oracle(of_batches.pass_differs_from_batch, _PASSES),
    Oracle(of_batches.phase_wrong, _PASSES),
    Oracle(of_batches.recomputed_wrong, _PASSES),
    Oracle(of_batches.sampled_wrong, _PASSES),
    Oracle(of_batches.waiting_wrong, _PASSES),
    Oracle(of_cache.tokens_differ, _PASSES),
    Oracle(of_cache.blocks_differ, _PASSES),
    Oracle(of_cache.host_pool_differs, _POOL),
    Oracle(of_preemptions.preemptions_differ, _PASSES),
    Oracle(of_preemptions.preemption_misplaced, _PREEMPTIONS),
    Oracle(of_preemptions.context_wrong, _PASSES),
    Oracle(of_preemptions.resumed_wrong, _PASSES),
    Oracle(of_preemptions.resumption_wrong, _PREEMPTIONS),
    Oracle(of_preemptions.refused_wrong, _ANY_PREEMPTION),
    Oracle(of_copies.bytes_wrong, _ANY_PREEMPTION),
    Oracle(of_copies.copy_missing, _ANY_PREEMPTION),
    Oracle(of_copies.copy_outside_pass, _COPIES),
    Oracle(of_copies.copy_time_wrong, _COPIES),
    Oracle(of_outputs.tokens_missing, _REQUESTS),
    Oracle(of_outputs.request_differs, _REQUESTS),
    Oracle(of_outputs.outputs_differ, _REPEATS),
    Oracle(of_outputs.nothing_served, _REQUESTS),
    Oracle(of_outputs.blocks_leaked, _LEAKS),
)


def judge_tables(records: Records) -> list[Verdict]:
    """The verdict of every oracle; where rows are wrong, those that build on them do not apply.

    A trace of kernels alone has neither passes nor requests, and nothing applies.
    """
    run = RecordedRun(records)
    if run.records.steps.empty and run.requests.empty:
        return [verdict(oracle, None) for oracle in (*ROWS, *ORACLES)]
    rows = judge(ROWS, run)
    if any(found.state == VIOLATED for found in rows):
        return rows + [verdict(oracle, None) for oracle in ORACLES]
    return rows + judge(ORACLES, run)
