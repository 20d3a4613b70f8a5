"""All oracles of a run's host tables, in the order of the checklist."""

from collections.abc import Callable
from itertools import starmap

from kvscope.base.time_sources import REHEARSED
from kvscope.judge.oracles import (
    added,
    batches,
    cache,
    clocks,
    copies,
    facts,
    kv_groups,
    of_packages,
    outputs,
    preemptions,
    profiled,
    repeats,
    replay,
    settings,
    tentative,
    times,
    values,
    victims,
    virtual,
    whole_batches,
    workload,
)
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.tables import BATCH
from kvscope.tables.evidence import (
    CLOCK,
    ORDER,
    PASSES,
    SETTINGS,
    STALLS,
)
from kvscope.tables.oracle import Need, Oracle, judge, verdict
from kvscope.tables.run_view import RunView
from kvscope.tables.runschema import OTHER_CLOCKS
from kvscope.tables.verdict import VIOLATED, Verdict

RunNeed = Need[RunTables]


def _need(
    words: str, *evidence: str, also: Callable[[RunTables], bool] = lambda _: True
) -> RunNeed:
    """A need of evidence, and of what only some runs have."""
    return Need(words, lambda run: run.evidence.issuperset(evidence) and also(run))


def _seen(
    words: str, *evidence: str, also: Callable[[RunTables], bool] = lambda _: True
) -> RunNeed:
    """A need of all passes with their times, and of further evidence."""
    return _need(words, PASSES, CLOCK, *evidence, also=also)


def _has_column(table: str, name: str) -> Callable[[RunTables], bool]:
    """Whether some row of a table has a value in a column."""
    return lambda run: bool(getattr(run.records, table)[name].notna().any())


def _tentative(column: str, kept: str) -> Oracle[RunTables]:
    need = _seen(f"passes with {column}", also=_has_column("batch", column))
    return Oracle(tentative.oracle_of(column, kept), need)


def _preempts(run: RunTables) -> bool:
    return not run.records.preemptions.empty


_PASSES = _seen("all passes, and their times")
_REPLAYED = _need(
    "all passes, and the lengths of their requests",
    PASSES,
    also=lambda run: not run.records.requests.empty,
)
_ADDED = _seen("tables of other packages", also=lambda run: bool(added.judged_names(run.records)))
_SETTINGS = _seen("an experiment.yaml", SETTINGS, also=lambda run: bool(run.records.settings))
_WORKLOAD = _seen("a complete experiment.yaml", SETTINGS, also=workload.has_all_settings)
_PROFILED = _seen("an export of Nsight Systems", also=profiled.is_profiled)
_BATCHES = _seen("a device that models whole batches", also=whole_batches.predicts_batches)
_MODELED_TOKENS = _seen("tokens of a modeled device", also=virtual.computes_nothing)
_DRY = _seen("device dry", also=virtual.is_dry)
_LAYERS = _seen(
    "times of the layers",
    also=lambda run: bool(run.engine.layers) and run.engine.computes and run.engine.times_layers,
)
_GROUPS = _seen("KV groups", also=lambda run: bool(run.kv_groups))
_IN_BYTES = _seen(
    "use of the cache in bytes, and a complete experiment.yaml",
    SETTINGS,
    also=lambda run: (
        bool(run.steps["kv_bytes_used"].notna().any()) and workload.has_all_settings(run)
    ),
)
_INPUTS_KEPT = _seen(
    "activations in place of K and V",
    also=lambda run: (
        bool(run.steps["context_bytes"].notna().any()) and run.engine.input_block_bytes > 0
    ),
)
_IN_ORDER = _seen("passes that are scheduled one after another", ORDER)
_ABORTED = _seen("requests that were aborted")
_PREEMPTIONS = _seen("preemptions, and passes in order", ORDER, also=_preempts)
_VICTIMS = _seen(
    "preemptions of victims by overflow.victim",
    also=lambda run: _preempts(run) and victims.chosen_by(run) is not None,
)
_PREDICTIONS = _seen(
    "preemptions of a policy that predicts their costs",
    also=lambda run: _preempts(run) and "name" in run.section("overflow"),
)
_SAVES = _seen("passes recorded with what they save", also=_has_column("batch", "saved_tokens"))
_COPIES = _seen("copies of preempted requests", also=lambda run: not run.records.moves.empty)
_REQUESTS = _seen("all requests, and their times", also=lambda run: not run.records.requests.empty)
_TIMED = _seen(
    "repeats timed by a real clock",
    SETTINGS,
    also=lambda run: run.by_clock and bool(run.record.clock.repeats),
)
_OTHER_CLOCKS = _need(
    f"readings of other clocks, which run.json has since schema {OTHER_CLOCKS}",
    also=lambda run: _TIMED.met(run) and run.has_other_clocks,
)
_COPY_CPU = _need(
    "copies that the host waits for, and their CPU time",
    also=lambda run: _OTHER_CLOCKS.met(run) and bool(run.engine.copies_awaited),
)
_COPIES_APART = _need(
    "copies that a device makes while the host goes on, and those of the warm-up",
    also=lambda run: (
        _OTHER_CLOCKS.met(run)
        and not run.engine.copies_awaited
        and run.record.time_source != REHEARSED  # the host makes those itself
    ),
)
_STALLS = _need("passes whose stalls are flagged by their durations", STALLS)
_FOLLOWERS = _seen("requests that follow others", also=workload.has_followers)
_BY_PASS = _seen("requests that come before passes", also=workload.comes_before_passes)
_KNOWN_OUTPUTS = _seen("outputs that the workload has", also=workload.has_known_outputs)
_REPEATS = _need(
    "two repeats or more", also=lambda run: run.records.served["repeat"].nunique() >= 2
)
_LEAKS = _need(_PASSES.words, also=lambda run: run.engine.states("leaked_blocks"))

# The other oracles rely on it.
ROWS: tuple[Oracle[RunTables], ...] = (Oracle(values.rows_wrong),)
ORACLES: tuple[Oracle[RunTables], ...] = (
    Oracle(settings.settings_differ, _SETTINGS),
    Oracle(workload.workload_differs, _WORKLOAD),
    Oracle(settings.limit_exceeded, _SETTINGS),
    Oracle(facts.facts_differ, _SETTINGS),
    Oracle(values.time_source_differs),
    Oracle(repeats.repeats_differ, _PASSES),
    Oracle(clocks.clocks_differ, _OTHER_CLOCKS),
    Oracle(clocks.copy_cpu_wrong, _COPY_CPU),
    Oracle(clocks.timings_differ, _TIMED),
    Oracle(times.passes_overlap, _IN_ORDER),
    Oracle(times.passes_apart, _IN_ORDER),
    Oracle(times.stalled_wrong, _STALLS),
    Oracle(times.layers_outside_pass, _LAYERS),
    Oracle(times.given_up_wrong, _ABORTED),
    Oracle(virtual.dry_time_wrong, _DRY),
    Oracle(virtual.modeled_output_wrong, _MODELED_TOKENS),
    Oracle(whole_batches.modeled_batch_wrong, _BATCHES),
    Oracle(whole_batches.modeled_facts_wrong, _BATCHES),
    Oracle(profiled.ranges_differ, _PROFILED),
    Oracle(replay.differs_from_replay, _REPLAYED),
    Oracle(added.added_differ, _ADDED),
    *starmap(_tentative, BATCH.tentative),
    Oracle(batches.batching_wrong, _SETTINGS),
    Oracle(cache.capacity_exceeded, _PASSES),
    Oracle(cache.context_bytes_wrong, _INPUTS_KEPT),
    Oracle(kv_groups.groups_wrong, _GROUPS),
    Oracle(kv_groups.groups_differ, _IN_BYTES),
    Oracle(preemptions.preemption_misplaced, _PREEMPTIONS),
    Oracle(victims.victim_wrong, _VICTIMS),
    Oracle(preemptions.prediction_wrong, _PREDICTIONS),
    Oracle(copies.copy_outside_pass, _COPIES),
    Oracle(copies.copy_time_wrong, _COPIES),
    Oracle(copies.copy_rate_wrong, _COPIES_APART),
    Oracle(copies.saves_wrong, _SAVES),
    Oracle(workload.turn_misplaced, _FOLLOWERS),
    Oracle(workload.arrival_pass_wrong, _BY_PASS),
    Oracle(workload.known_output_differs, _KNOWN_OUTPUTS),
    Oracle(outputs.outputs_differ, _REPEATS),
    Oracle(outputs.nothing_served, _REQUESTS),
    Oracle(outputs.blocks_leaked, _LEAKS),
)


def all_oracles() -> list[Oracle[RunTables]]:
    """ORACLES, and those of installed packages, in their order; BadInput if one cannot be used."""
    names = {oracle.name for oracle in (*ROWS, *ORACLES)}
    placed = [(10 * place, oracle) for place, oracle in enumerate(ORACLES, 1)]
    placed += [(oracle.order, oracle) for oracle in of_packages.package_oracles(names)]
    return [oracle for _, oracle in sorted(placed, key=lambda one: one[0])]


def judge_tables(records: RunView) -> list[Verdict]:
    """The verdict of every oracle of host tables, in the order of the checklist.

    If ROWS are violated, the others are not applicable. Neither are in a run without passes and
    requests, such as an imported kernel trace.
    """
    run, others = RunTables(records), all_oracles()
    if run.records.steps.empty and run.records.requests.empty:
        return [verdict(oracle, None) for oracle in (*ROWS, *others)]
    rows = judge(ROWS, run)
    if any(result.state == VIOLATED for result in rows):
        return rows + [verdict(oracle, None) for oracle in others]
    return rows + judge(others, run)
