"""All oracles of a run's host tables, in the order of the checklist."""

from collections.abc import Callable

from kvscope.analyse.oracles import (
    batches,
    cache,
    clocks,
    copies,
    facts,
    kv_groups,
    modeled,
    offloading,
    outputs,
    preemptions,
    prefix_cache,
    profiled,
    repeats,
    settings,
    times,
    values,
    victims,
    workload,
)
from kvscope.analyse.oracles.run_tables import RunTables
from kvscope.analyse.records import Records
from kvscope.collect.importer import importer, kinds
from kvscope.kv_plan import KINDS
from kvscope.oracle import VIOLATED, Need, Oracle, Verdict, judge, verdict
from kvscope.runfile import IMPORTED_FROM, KERNEL_EVENTS
from kvscope.runschema import OTHER_CLOCKS
from kvscope.time_sources import REHEARSED

RunNeed = Need[RunTables]


def _recorded(words: str, also: Callable[[RunTables], bool] = lambda _: True) -> RunNeed:
    """A need that imported runs and cut recordings never meet, as they lack records."""
    return Need(words, lambda run: not run.imported and not run.cut and also(run))


def _flags_by_duration(run: RunTables) -> bool:
    """False of an imported run of which something else says which passes stalled."""
    if IMPORTED_FROM not in run.facts:
        return True
    kind = run.facts[IMPORTED_FROM]["kind"]
    return kind in kinds() and importer(kind).stalls_by_duration


def _blocks_follow(run: RunTables) -> bool:
    """Whether a request's blocks follow from its tokens.

    Not in a recorded server with KV groups of other kinds, or that differ and cache prefixes; nor
    where requests keep the blocks of drafts that were wrong, or hold some that a connector fills.
    """
    known = all(group.kind in KINDS for group in run.kv_groups)
    kept = bool(run.recorded.get("draft_tokens") or run.recorded.get("connector"))
    return known and not kept and not (run.groups_differ and run.recorded.get("prefix_caching"))


_PASSES = _recorded("passes recorded by kvscope")
_SETTINGS = _recorded("an experiment.yaml", lambda run: bool(run.records.settings))
_WORKLOAD = _recorded("a complete experiment.yaml", workload.has_all_settings)
_PROFILED = _recorded("an export of Nsight Systems", profiled.is_profiled)
_MODELED_EVENTS = _recorded(
    "KV events of device modeled",
    lambda run: modeled.is_modeled(run) and KERNEL_EVENTS in run.facts["files"],
)
_BATCHES = _recorded("a device that models whole batches", modeled.predicts_batches)
_MODELED = _recorded("device modeled", modeled.is_modeled)
_MODELED_TOKENS = _recorded(
    "tokens of a modeled device",
    lambda run: modeled.is_modeled(run) or modeled.predicts_batches(run),
)
_LAYERS = _recorded(
    "times of the layers",
    lambda run: (
        bool(run.engine.get("layers"))
        and run.engine.get("computes", True)
        and run.engine.get("times_layers", True)
    ),
)
_GROUPS = _recorded("KV groups", lambda run: bool(run.kv_groups))
_IN_BYTES = _recorded(
    "use of the cache in bytes, and a complete experiment.yaml",
    lambda run: bool(run.steps["kv_bytes_used"].notna().any()) and workload.has_all_settings(run),
)
_ACTIVATIONS_KEPT = _recorded(
    "activations in place of K and V",
    lambda run: (
        bool(run.steps["context_bytes"].notna().any())
        and run.engine.get("activation_block_bytes", 0) > 0
    ),
)
_BY_GROUP = _recorded(
    "blocks recorded by KV group", lambda run: bool(run.kv_groups) and not run.recorded
)
_PREFIXES = _recorded(
    "a prefix cache, and prompts with their tokens",
    lambda run: run.caches_prefixes and not run.recorded,
)
_IN_ORDER = _recorded(
    "passes that are scheduled one after another",
    lambda run: not run.recorded.get("overlapping"),
)
_HITS = _recorded(
    "passes in order, and one KV group if prefixes are cached",
    lambda run: _IN_ORDER.met(run) and (run.caches_prefixes or not run.finds_prefixes),
)
_BLOCKS_FOLLOW = _recorded(
    "passes in order, and KV groups whose blocks follow from tokens",
    lambda run: _IN_ORDER.met(run) and _blocks_follow(run),
)
_FREED_FOLLOW = _recorded(
    "preemptions recorded by kvscope, of KV groups whose blocks follow from tokens", _blocks_follow
)
_DRAFTS = _recorded(
    "passes with speculative decoding", lambda run: bool(run.recorded.get("draft_tokens"))
)
_POOL = _recorded("a host pool", lambda run: bool(run.steps["host_blocks_total"].any()))
_ABORTED = _recorded("requests that were aborted")
_PREEMPTIONS = _recorded("preemptions recorded by kvscope")
_ANY_PREEMPTION = _recorded(_PREEMPTIONS.words, lambda run: not run.records.preemptions.empty)
_ROOM_FOLLOWS = _recorded(
    _FREED_FOLLOW.words, lambda run: _ANY_PREEMPTION.met(run) and _blocks_follow(run)
)
_VICTIMS = _recorded(
    "preemptions of victims by overflow.victim",
    lambda run: _ANY_PREEMPTION.met(run) and victims.chosen_by(run) is not None,
)
_PREDICTIONS = _recorded(
    "preemptions of a policy that predicts their costs",
    lambda run: _ANY_PREEMPTION.met(run) and "name" in run.section("overflow"),
)
_SAVES = _recorded(
    "passes recorded with what they save",
    lambda run: bool(run.records.batch["saved_tokens"].notna().any()),
)
_COSTS = _recorded(
    "costs of resumptions",
    lambda run: (
        not run.recorded.get("connector") and bool(run.records.preemptions["cost_s"].notna().any())
    ),
)
_COPIES = _recorded("copies of preempted requests", lambda run: not run.records.moves.empty)
_JOBS = _recorded("copies of vLLM's offloading", lambda run: not run.records.jobs.empty)
_TIMED_JOBS = _recorded("copies of vLLM's offloading with their times", lambda run: run.offloads)
_LOADS = _recorded(
    "passes recorded with what is loaded before them, and the jobs that load it",
    lambda run: (
        not run.recorded.get("connector") and bool(run.records.batch["loaded_tokens"].notna().any())
    ),
)
_REQUESTS = _recorded("requests recorded by kvscope", lambda run: not run.records.requests.empty)
_TIMED = _recorded(
    "repeats timed by a real clock",
    lambda run: (
        not run.recorded and run.by_clock and bool(run.facts.get("clock", {}).get("repeats"))
    ),
)
_OTHER_CLOCKS = _recorded(
    f"readings of other clocks, which run.json has since schema {OTHER_CLOCKS}",
    lambda run: _TIMED.met(run) and run.has_other_clocks,
)
_COPY_CPU = _recorded(
    "copies that the host waits for, and their CPU time",
    lambda run: _OTHER_CLOCKS.met(run) and bool(run.engine.get("copies_awaited")),
)
_COPIES_APART = _recorded(
    "copies that a device makes while the host goes on, and those of the warm-up",
    lambda run: (
        _OTHER_CLOCKS.met(run)
        and not run.engine.get("copies_awaited")
        and run.facts.get("time_source") != REHEARSED  # the host makes those itself
    ),
)
_STALLS: RunNeed = Need("passes whose stalls are flagged by their durations", _flags_by_duration)
_FOLLOWERS = _recorded("requests that follow others", workload.has_followers)
_BY_PASS = _recorded("requests that come before passes", workload.comes_before_passes)
_KNOWN_OUTPUTS = _recorded("outputs that the workload has", workload.has_known_outputs)
_REPEATS: RunNeed = Need(
    "two repeats or more", lambda run: run.records.served["repeat"].nunique() >= 2
)
_LEAKS: RunNeed = Need(_PASSES.words, lambda run: "leaked_blocks" in run.engine)

# The other oracles rely on these.
ROWS: tuple[Oracle[RunTables], ...] = (
    Oracle(values.row_repeated, _PASSES),
    Oracle(values.value_missing),
    Oracle(values.value_negative, _PASSES),
    Oracle(values.row_without_owner, _PASSES),
)
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
    Oracle(times.request_times_differ, _REQUESTS),
    Oracle(times.given_up_wrong, _ABORTED),
    Oracle(modeled.modeled_time_wrong, _MODELED),
    Oracle(modeled.modeled_kernel_wrong, _MODELED_EVENTS),
    Oracle(modeled.modeled_output_wrong, _MODELED_TOKENS),
    Oracle(modeled.modeled_batch_wrong, _BATCHES),
    Oracle(modeled.modeled_facts_wrong, _BATCHES),
    Oracle(profiled.ranges_differ, _PROFILED),
    Oracle(batches.pass_differs_from_batch, _PASSES),
    Oracle(batches.phase_wrong, _PASSES),
    Oracle(batches.recomputed_wrong, _PASSES),
    Oracle(batches.sampled_wrong, _PASSES),
    Oracle(batches.drafts_wrong, _DRAFTS),
    Oracle(batches.batching_wrong, _SETTINGS),
    Oracle(batches.waiting_wrong, _PASSES),
    Oracle(cache.tokens_differ, _IN_ORDER),
    Oracle(cache.blocks_differ, _BLOCKS_FOLLOW),
    Oracle(cache.context_bytes_wrong, _ACTIVATIONS_KEPT),
    Oracle(kv_groups.groups_wrong, _GROUPS),
    Oracle(kv_groups.groups_differ, _IN_BYTES),
    Oracle(kv_groups.group_blocks_differ, _BY_GROUP),
    Oracle(kv_groups.group_bytes_differ, _BY_GROUP),
    Oracle(cache.host_pool_differs, _POOL),
    Oracle(prefix_cache.hits_differ, _HITS),
    Oracle(prefix_cache.hit_unfounded, _PREFIXES),
    Oracle(prefix_cache.hit_missed, _PREFIXES),
    Oracle(prefix_cache.eviction_wrong, _PREFIXES),
    Oracle(prefix_cache.cached_blocks_differ, _PREFIXES),
    Oracle(prefix_cache.tokens_not_conserved, _PASSES),
    Oracle(preemptions.preemptions_differ, _PASSES),
    Oracle(preemptions.preemption_misplaced, _BLOCKS_FOLLOW),
    Oracle(preemptions.context_wrong, _PASSES),
    Oracle(preemptions.resumed_wrong, _PASSES),
    Oracle(preemptions.resumption_wrong, _FREED_FOLLOW),
    Oracle(preemptions.preempted_with_room, _ROOM_FOLLOWS),
    Oracle(victims.victim_wrong, _VICTIMS),
    Oracle(preemptions.refused_wrong, _ANY_PREEMPTION),
    Oracle(preemptions.cost_wrong, _COSTS),
    Oracle(preemptions.prediction_wrong, _PREDICTIONS),
    Oracle(copies.bytes_wrong, _ANY_PREEMPTION),
    Oracle(copies.copy_missing, _ANY_PREEMPTION),
    Oracle(copies.copy_outside_pass, _COPIES),
    Oracle(copies.copy_time_wrong, _COPIES),
    Oracle(copies.copy_rate_wrong, _COPIES_APART),
    Oracle(copies.saves_wrong, _SAVES),
    Oracle(offloading.job_malformed, _JOBS),
    Oracle(offloading.job_time_wrong, _TIMED_JOBS),
    Oracle(offloading.load_wrong, _LOADS),
    Oracle(offloading.store_wrong, _JOBS),
    Oracle(offloading.loaded_without_stored, _TIMED_JOBS),
    Oracle(offloading.load_wait_wrong, _LOADS),
    Oracle(outputs.tokens_missing, _REQUESTS),
    Oracle(outputs.request_differs, _REQUESTS),
    Oracle(workload.turn_misplaced, _FOLLOWERS),
    Oracle(workload.arrival_pass_wrong, _BY_PASS),
    Oracle(workload.known_output_differs, _KNOWN_OUTPUTS),
    Oracle(outputs.outputs_differ, _REPEATS),
    Oracle(outputs.nothing_served, _REQUESTS),
    Oracle(outputs.blocks_leaked, _LEAKS),
)


def judge_tables(records: Records) -> list[Verdict]:
    """The verdict of every oracle of host tables, in the order of the checklist.

    If one of ROWS is violated, ORACLES are not applicable. Neither are in a run without passes and
    requests, such as an imported kernel trace.
    """
    run = RunTables(records)
    if run.records.steps.empty and run.records.requests.empty:
        return [verdict(oracle, None) for oracle in (*ROWS, *ORACLES)]
    rows = judge(ROWS, run)
    if any(found.state == VIOLATED for found in rows):
        return rows + [verdict(oracle, None) for oracle in ORACLES]
    return rows + judge(ORACLES, run)
