"""All oracles of a run's host tables, in the order of the checklist."""

from pathlib import Path
from typing import Any

from kvscope import tables
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
from kvscope.analyse.oracles.run import Run
from kvscope.analyse.records import Records
from kvscope.oracle import VIOLATED, Oracle, Verdict, judged, verdict
from kvscope.plan.documents import load_mapping
from kvscope.runfile import EXPERIMENT_FILE, require_unchanged

_PASSES = "passes recorded by kvscope"
_SETTINGS = "an experiment.yaml"
_REQUESTS = "requests"
_PREEMPTIONS = "preemptions recorded by kvscope"
_COPIES = "requests that were swapped"

# What the others take for granted.
ROWS: tuple[Oracle[Run], ...] = (
    Oracle(of_values.row_repeated, _PASSES),
    Oracle(of_values.value_missing),
    Oracle(of_values.value_negative, _PASSES),
    Oracle(of_values.row_without_owner, _PASSES),
)
ORACLES: tuple[Oracle[Run], ...] = (
    Oracle(of_settings.settings_differ, _SETTINGS),
    Oracle(of_settings.limit_exceeded, _SETTINGS),
    Oracle(of_values.time_source_differs),
    Oracle(of_repeats.repeats_differ, _PASSES),
    Oracle(of_times.passes_overlap, _PASSES),
    Oracle(of_times.passes_apart, _PASSES),
    Oracle(of_times.stalled_wrong, "passes"),
    Oracle(of_times.layers_outside_pass, "times of the layers"),
    Oracle(of_times.request_times_differ, _REQUESTS),
    Oracle(of_times.given_up_wrong, "requests that were given up"),
    Oracle(of_batches.pass_differs_from_batch, _PASSES),
    Oracle(of_batches.phase_wrong, _PASSES),
    Oracle(of_batches.recomputed_wrong, _PASSES),
    Oracle(of_batches.sampled_wrong, _PASSES),
    Oracle(of_batches.waiting_wrong, _PASSES),
    Oracle(of_cache.tokens_differ, _PASSES),
    Oracle(of_cache.blocks_differ, _PASSES),
    Oracle(of_cache.host_pool_differs, "a host pool"),
    Oracle(of_preemptions.preemptions_differ, _PASSES),
    Oracle(of_preemptions.preemption_misplaced, _PREEMPTIONS),
    Oracle(of_preemptions.context_wrong, _PASSES),
    Oracle(of_preemptions.resumed_wrong, _PASSES),
    Oracle(of_preemptions.resumption_wrong, _PREEMPTIONS),
    Oracle(of_preemptions.refused_wrong, _PREEMPTIONS),
    Oracle(of_copies.bytes_wrong, _PREEMPTIONS),
    Oracle(of_copies.copy_missing, _PREEMPTIONS),
    Oracle(of_copies.copy_outside_pass, _COPIES),
    Oracle(of_copies.copy_time_wrong, _COPIES),
    Oracle(of_outputs.tokens_missing, _REQUESTS),
    Oracle(of_outputs.request_differs, _REQUESTS),
    Oracle(of_outputs.outputs_differ, "two repeats or more"),
    Oracle(of_outputs.nothing_served, _REQUESTS),
    Oracle(of_outputs.blocks_leaked, _PASSES),
)


def judge_tables(run: Run) -> list[Verdict]:
    """The verdict of every oracle; where rows are wrong, those that build on them do not apply.

    A trace of kernels alone has neither passes nor requests, and nothing applies.
    """
    if run.records.steps.empty and run.requests.empty:
        return [verdict(oracle, None) for oracle in (*ROWS, *ORACLES)]
    rows = judged(ROWS, run)
    if any(found.state == VIOLATED for found in rows):
        return rows + [verdict(oracle, None) for oracle in ORACLES]
    return rows + judged(ORACLES, run)


def run_of(directory: Path, facts: dict[str, Any], records: Records) -> Run:
    """A run's tables for its oracles; BadInput names a file that is damaged or changed."""
    path, asked = directory / f"{tables.LAYERS.name}.parquet", directory / EXPERIMENT_FILE
    require_unchanged(directory, facts, path.name, asked.name)
    layers = tables.read(tables.LAYERS, path) if path.exists() else tables.LAYERS.empty()
    return Run(facts, records, layers, load_mapping(asked) if asked.exists() else {})
