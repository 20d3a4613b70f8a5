"""Oracles of run.json: what it says of a run follows from the experiment's settings.

Other oracles, their needs and the rules of validity believe these keys: a wrong one would turn them
off.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from kvscope import evidence
from kvscope.actions import NATIVE, copies_blocks, rebuilds_blocks
from kvscope.analyse.oracles.run_tables import OF_REQUEST, RunTables, counts_of
from kvscope.analyse.oracles.settings import Pair, differing
from kvscope.collect.importer import PUBLISHED, content_digest, kinds
from kvscope.copies import copies_of
from kvscope.disturbed import LOAD, DisturbanceVerdict, judge_repeats
from kvscope.events import VIRTUAL_CLOCK
from kvscope.kv_plan import layers_apart
from kvscope.oracle import Violations
from kvscope.plan import registry
from kvscope.plan.device import Device
from kvscope.plan.parts import CacheSettings
from kvscope.runfile import (
    COMPLETE,
    EXPERIMENT_FILE,
    IMPORTED_FROM,
    KERNEL_EVENTS,
    NSYS_EXPORT,
    RECORDED,
    TRACING,
)
from kvscope.runschema import EVIDENCE, OTHER_CLOCKS
from kvscope.stalls import shape_classes
from kvscope.tables import OF_PREFIX_CACHE

Facts = Mapping[str, Any]
OWN = ("warmup", "timings_s", "command", "disturbance", "profiler")
"""Keys that only a measurement by kvscope has."""
RESET = "reset_prefix_cache"
"""vLLM's call that empties a prefix cache."""
STRIDES = ("step_stride", "layer_stride", "head_stride")


def origin_wrong(facts: Facts) -> Violations:
    """A run has an experiment.yaml, unless run.json names the files, or the server, that it is of.

    It lists the evidence that such a run has.

    An imported run has times of `published` source, a known kind, the id of its files, and nothing
    that only a measurement has.
    """
    return differing(_of_import(facts) if IMPORTED_FROM in facts else _of_own_run(facts))


def _of_own_run(facts: Facts) -> Iterator[Pair]:
    own = RECORDED not in facts
    due = evidence.OWN if own else evidence.of_recording(facts[RECORDED])
    if facts.get("schema", EVIDENCE) >= EVIDENCE and facts.get("status") == COMPLETE:
        yield "evidence that is missing", sorted(due - {*facts.get("evidence", ())}), []
    yield f"whether {EXPERIMENT_FILE} is recorded", EXPERIMENT_FILE in facts["files"], own
    yield "faults of a run by kvscope", facts.get("faults", []), []
    if facts.get("status") == COMPLETE:
        yield "whether a complete run has a reason for a failure", bool(facts.get("reason")), False


def _of_import(facts: Facts) -> Iterator[Pair]:
    source = facts[IMPORTED_FROM]
    hashes = [file.get("sha256", "") for file in source["files"]]
    digest = str(facts["experiment_id"]).rpartition("-")[2]
    yield f"whether {EXPERIMENT_FILE} is recorded", EXPERIMENT_FILE in facts["files"], False
    yield "whether published files are named", bool(hashes), True
    yield "time_source", facts.get("time_source"), PUBLISHED
    yield "keys of a measurement by kvscope", [key for key in OWN if key in facts], []
    yield "imported_from.kind", source["kind"] in kinds(), True
    yield "the end of experiment_id", digest, content_digest(hashes, source.get("series"))


def facts_differ(run: RunTables) -> Violations:
    """run.json has the device, repeats, tracing, profiler and warm-up that the settings lead to.

    What is known of a device, such as the source of its times, is declared by the device's class.
    """

    sections = (_of_device, _of_memory, _of_tracing, _of_profiler, _of_warm_up, _of_repeats)
    return differing(pair for section in sections for pair in section(run))


def _of_device(run: RunTables) -> Iterator[Pair]:
    name, made = run.section("device").get("name"), run.engine
    if name is None:
        return
    device = device_class(name)
    source, allowed = run.facts.get("time_source"), device.time_sources()
    yield "time_source", source, source if source in allowed else device.time_source
    if run.facts.get("schema", EVIDENCE) >= EVIDENCE:
        yield "evidence that is missing", sorted(device.evidence - run.evidence), []
    yield "engine.copies_awaited", made.get("copies_awaited", False), device.copies_awaited
    yield "engine.computes", made.get("computes", True), device.allocates
    yield "engine.times_layers", made.get("times_layers", True), device.times_layers
    gpus = run.facts.get("hardware", {}).get("gpus")
    yield "whether there are GPUs", bool(gpus), bool(device.gpus)


def _of_memory(run: RunTables) -> Iterator[Pair]:
    made, cache, overflow = run.engine, run.section("cache"), run.section("overflow")
    pool, layers = made.get("host_blocks_total"), run.section("model").get("layers")
    if pool and layers and "layout" in cache:
        apart = layers_apart(run.kv_groups) if run.kv_groups else layers
        pieces = CacheSettings.model_validate(cache).pieces(apart)
        yield "engine.pieces_per_block", made.get("pieces_per_block"), pieces
    if pool and "host_memory" in overflow and "host_memory" in made:
        pinned = made["host_memory"] != "pageable"
        yield "whether engine.host_memory is pinned", pinned, overflow["host_memory"] == "pinned"
    workload = run.facts.get("workload", {}).get("workload")
    yield "workload.workload", workload, workload and run.section("workload").get("name")


def device_class(name: str) -> type[Device]:
    """The class of a device; BadInput if no installed package has it."""
    return cast(type[Device], registry.load("device", name))


def _of_tracing(run: RunTables) -> Iterator[Pair]:
    asked, model = run.section("tracing"), run.section("model")
    if "name" not in asked:
        return
    traced = asked["name"] != "none"
    recorded = run.facts.get(TRACING) or {}
    yield "whether KV events are traced", TRACING in run.facts, traced
    yield f"whether {KERNEL_EVENTS} is recorded", KERNEL_EVENTS in run.facts["files"], traced
    if not traced:
        return
    for key, expected in asked.items():
        yield f"tracing.{key}", recorded.get(key), expected
    steps, layers, heads = (asked.get(stride, 1) for stride in STRIDES)
    for key, exist, stride in (("layers", "layers", layers), ("kv_heads", "kv_heads", heads)):
        if exist in model:
            yield f"tracing.{key}", recorded.get(key), list(range(0, model[exist], stride))
    yield "tracing.passes", recorded.get("passes"), int((run.steps["step"] % steps == 0).sum())
    clock = recorded.get("clock") or {}
    virtual = clock.get("name") == VIRTUAL_CLOCK
    yield "whether events are modeled", virtual, not run.by_clock
    apart = [one for one in clock.get("samples", []) if one["ticks"] != one["host_ns"]]
    yield "readings of the virtual clock that differ from the host's", len(apart) * virtual, 0


def _of_profiler(run: RunTables) -> Iterator[Pair]:
    requested, found = run.section("profiler").get("name"), run.facts.get("profiler") or {}
    if requested is None:
        return
    used, why = found.get("used"), bool(found.get("reason"))
    due = "nsys" if requested != "none" else "none"
    yield "profiler.requested", found.get("requested"), requested
    yield "profiler.used", used, due if used == "nsys" or not why else None
    if not (used == "nsys" and why):
        yield (
            f"whether {NSYS_EXPORT} is recorded",
            NSYS_EXPORT in run.facts["files"],
            used == "nsys",
        )


def _of_warm_up(run: RunTables) -> Iterator[Pair]:
    asked, found = run.records.settings.get("warmup"), run.facts.get("warmup") or {}
    if asked is None:
        return
    yield "whether there was a warm-up", bool(found.get("passes")), asked > 0
    measured, missed = set(shape_classes(run.steps)), set(found.get("uncovered_classes", []))
    yield "uncovered classes that were not measured", sorted(missed - measured), []
    covered = len(measured - missed) <= found.get("classes", 0)
    yield "whether warmup.classes has the classes covered", covered, True
    if not asked:
        yield "what there is of a warm-up", found.get("classes") or found.get("copies") or 0, 0
    name, attention = run.section("device").get("name"), run.section("engine").get("attention")
    repeats = len(run.records.numbers)
    if name is None or not asked:
        return
    device = device_class(name)
    checked = attention in device.attentions and device.attentions[attention].compared
    yield "whether attention was compared", _compared(run, "reference_checks"), checked or None
    if not run.repeats_warm_up:
        return
    found = copies_of(run.records.transfers)
    yield "warmup.passes", run.facts["warmup"].get("passes"), len(run.steps) * asked / repeats
    yield "warmup.classes", run.facts["warmup"].get("classes"), len(measured)
    warm = {kind: one["count"] for kind, one in run.facts["warmup"].get("copies", {}).items()}
    due = {kind: one["count"] * asked / repeats for kind, one in found.items()}
    yield "copies in the warm-up", warm, due
    if device.allocates:
        back = _compared_copies(run) * asked / repeats
        yield "whether copies were compared", _compared(run, "swap_checks"), back > 0 or None
        yield "engine.swap_checks.compared", _checks(run, "swap_checks"), back


def _compared(run: RunTables, key: str) -> bool:
    return bool(_checks(run, key))


def _checks(run: RunTables, key: str) -> int:
    return int(run.engine.get(key, {}).get("compared", 0))


def _compared_copies(run: RunTables) -> int:
    """Resumptions whose blocks can be compared: swapped, and full ones, rebuilt or loaded."""
    rows = run.resumptions.merge(
        run.batch[[*OF_REQUEST, "step", "context_tokens"]], on=[*OF_REQUEST, "step"]
    )
    copied, size = rows["context_tokens"] > counts_of(rows["hit_tokens"]), run.records.block_size
    full = rebuilds_blocks(rows["policy"]) & (rows["tokens"] >= size)
    there = rows["tokens"] - rows["recomputed_tokens"] >= size
    full |= (rows["policy"] == NATIVE.name) & there
    return int(((copies_blocks(rows["policy"]) & copied) | full).sum())


def _of_repeats(run: RunTables) -> Iterator[Pair]:
    if run.records.settings.get("repeats") is None:
        return
    numbers, judged = run.records.numbers, run.facts.get("disturbance") or []
    clock = (run.facts.get("clock") or {}).get("repeats", [])
    yield "repeats of clock", [entry["repeat"] for entry in clock], numbers
    due = numbers if run.by_clock else []
    yield "repeats of disturbance", [entry["repeat"] for entry in judged], due
    yield from _of_disturbance(run.facts, judged)
    yield "whether engine.leaked_blocks is recorded", "leaked_blocks" in run.engine, True
    yield from _of_prefix_cache(run)


def _of_prefix_cache(run: RunTables) -> Iterator[Pair]:
    """Each repeat began with an empty one, and has the tables of its blocks."""
    emptied = {"emptied_by": RESET, "cached_blocks": 0}
    due = [{"repeat": number} | emptied for number in run.records.numbers]
    found = run.engine.get("prefix_cache", [])
    yield "engine.prefix_cache", found, due if run.caches_prefixes else []
    for table in OF_PREFIX_CACHE:
        recorded = table.file in run.facts["files"]
        yield f"whether {table.file} is recorded", recorded, run.caches_prefixes


def _of_disturbance(facts: Facts, judged: Sequence[Facts]) -> Iterator[Pair]:
    """The verdict on each repeat, from the load around it; older runs have not all of it."""
    lacking = [entry["repeat"] for entry in judged if not {*LOAD} <= entry.keys()]
    if facts.get("schema", 1) < OTHER_CLOCKS:
        return
    yield "repeats without the load that their disturbance follows from", lacking, []
    if lacking:
        return
    for entry, due in zip(judged, judge_repeats(judged), strict=True):
        found = {field: entry.get(field) for field in DisturbanceVerdict._fields}
        yield f"disturbance of repeat {entry['repeat']}", found, due._asdict()
