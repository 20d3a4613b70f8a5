"""Oracles of run.json: what it says of a run follows from the experiment's settings.

Other oracles, their needs and the rules of validity believe these keys: a wrong one would turn them
off.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from kvscope.collect.importer import PUBLISHED, content_digest, kinds
from kvscope.judge.oracles.run_tables import OF_REQUEST, RunTables, counts_of
from kvscope.judge.oracles.settings import Pair, differing
from kvscope.judge.oracles.victims import policy_of
from kvscope.plan import registry
from kvscope.plan.actions import copies_blocks, loads_blocks, rebuilds_blocks
from kvscope.plan.device import Device
from kvscope.plan.parts import CacheSettings
from kvscope.tables import OF_PREFIX_CACHE, evidence
from kvscope.tables.added import job_table
from kvscope.tables.copies import VIRTUAL_CLOCK, copies_of
from kvscope.tables.kv_plan import layers_apart
from kvscope.tables.oracle import Violations
from kvscope.tables.runfile import (
    EXPERIMENT_FILE,
    KERNEL_EVENTS,
    NSYS_EXPORT,
)
from kvscope.tables.runschema import EVIDENCE, JOBS, RunRecord
from kvscope.tables.stalls import shape_classes

Facts = Mapping[str, Any]
OWN = ("warmup", "timings_s", "command", "load", "profiler")
"""Keys that only a measurement by kvscope has."""
RESET = "reset_prefix_cache"
"""vLLM's call that empties a prefix cache."""
STRIDES = ("step_stride", "layer_stride", "head_stride")


def origin_wrong(record: RunRecord) -> Violations:
    """A run has an experiment.yaml, unless run.json names the files or the server of its origin.

    run.json lists the evidence that such a run has. An imported run has times of `published`
    source, a known kind and the id of its files, but no entry that only a measurement has.
    """
    return differing(_of_import(record) if record.imported_from else _of_own_run(record))


def _of_own_run(record: RunRecord) -> Iterator[Pair]:
    server = record.recorded
    expected = evidence.of_recording(server.as_written()) if server else evidence.OWN
    if record.schema_version >= EVIDENCE and record.complete:
        yield "evidence that is missing", sorted(expected - {*record.evidence}), []
    yield f"whether {EXPERIMENT_FILE} is recorded", EXPERIMENT_FILE in record.files, not server
    yield "faults of a run by kvscope", record.faults, []
    if record.complete:
        yield "whether a complete run has a reason for a failure", bool(record.reason), False


def _of_import(record: RunRecord) -> Iterator[Pair]:
    source = record.imported_from
    assert source
    hashes = [file.sha256 for file in source.files]
    digest = record.experiment_id.rpartition("-")[2]
    yield f"whether {EXPERIMENT_FILE} is recorded", EXPERIMENT_FILE in record.files, False
    yield "whether published files are named", bool(hashes), True
    yield "time_source", record.time_source, PUBLISHED
    yield "keys of a measurement by kvscope", [key for key in OWN if record.states(key)], []
    yield "imported_from.kind", source.kind in kinds(), True
    yield "the end of experiment_id", digest, content_digest(hashes, source.series)


def facts_differ(run: RunTables) -> Violations:
    """run.json has the device, repeats, tracing, profiler and warm-up that follow from the
    settings.

    The device's class declares its properties, such as the source of its times.
    """

    of_plan = (_of_device, _of_memory, _of_jobs, _of_tracing, _of_profiler)
    sections = (*of_plan, _of_warm_up, _of_repeats)
    return differing(pair for section in sections for pair in section(run))


def _of_device(run: RunTables) -> Iterator[Pair]:
    name, engine = run.section("device").get("name"), run.engine
    if name is None:
        return
    device = device_class(name)
    source, allowed = run.record.time_source, device.time_sources()
    yield "time_source", source, source if source in allowed else device.time_source
    if run.record.schema_version >= EVIDENCE:
        yield "evidence that is missing", sorted(device.evidence - run.evidence), []
    yield "engine.copies_awaited", bool(engine.copies_awaited), device.copies_awaited
    yield "engine.computes", engine.computes, device.allocates
    yield "engine.times_layers", engine.times_layers, device.times_layers
    yield "whether there are GPUs", bool(run.record.hardware.gpus), bool(device.gpus)


def _of_memory(run: RunTables) -> Iterator[Pair]:
    engine, cache, overflow = run.engine, run.section("cache"), run.section("overflow")
    pool, layers = engine.host_blocks_total, run.section("model").get("layers")
    if pool and layers and "layout" in cache:
        apart = layers_apart(run.kv_groups) if run.kv_groups else layers
        pieces = CacheSettings.model_validate(cache).pieces(apart)
        yield "engine.pieces_per_block", engine.pieces_per_block, pieces
    if pool and "host_memory" in overflow and engine.states("host_memory"):
        pinned = engine.host_memory != "pageable"
        yield "whether engine.host_memory is pinned", pinned, overflow["host_memory"] == "pinned"
    workload = run.record.workload.workload
    yield "workload.workload", workload, workload and run.section("workload").get("name")


def _of_jobs(run: RunTables) -> Iterator[Pair]:
    table, written = job_table(), run.record.schema_version >= JOBS
    if table and written and "name" in run.section("overflow"):
        recorded = table.table.file in run.record.files
        expected = policy_of(run).orders_jobs and run.record.complete
        yield f"whether {table.table.file} is recorded", recorded, expected


def device_class(name: str) -> type[Device]:
    """The class of a device; BadInput if no installed package has it."""
    return cast(type[Device], registry.load("device", name))


def _of_tracing(run: RunTables) -> Iterator[Pair]:
    settings, model = run.section("tracing"), run.section("model")
    if "name" not in settings:
        return
    traced = settings["name"] != "none"
    recorded = run.record.tracing
    yield "whether KV events are traced", recorded is not None, traced
    yield f"whether {KERNEL_EVENTS} is recorded", KERNEL_EVENTS in run.record.files, traced
    if not traced or not recorded:
        return
    for key, expected in settings.items():
        yield f"tracing.{key}", recorded.stated(key), expected
    steps, layers, heads = (settings.get(stride, 1) for stride in STRIDES)
    for key, exist, stride in (("layers", "layers", layers), ("kv_heads", "kv_heads", heads)):
        if exist in model:
            yield f"tracing.{key}", recorded.stated(key), list(range(0, model[exist], stride))
    yield "tracing.passes", recorded.passes, int((run.steps["step"] % steps == 0).sum())
    clock = recorded.clock
    virtual = bool(clock and clock.name == VIRTUAL_CLOCK)
    yield "whether events are modeled", virtual, not run.by_clock
    apart = [sample for sample in clock.samples if sample.ticks != sample.host_ns] if clock else []
    yield "readings of the virtual clock that differ from the host's", len(apart) * virtual, 0


def _of_profiler(run: RunTables) -> Iterator[Pair]:
    requested, profiler = run.section("profiler").get("name"), run.record.profiler
    if requested is None:
        return
    used, why = profiler and profiler.used, bool(profiler and profiler.reason)
    expected = "nsys" if requested != "none" else "none"
    yield "profiler.requested", profiler and profiler.requested, requested
    yield "profiler.used", used, expected if used == "nsys" or not why else None
    if not (used == "nsys" and why):
        yield (
            f"whether {NSYS_EXPORT} is recorded",
            NSYS_EXPORT in run.record.files,
            used == "nsys",
        )


def _of_warm_up(run: RunTables) -> Iterator[Pair]:
    servings, warm_up = run.records.settings.get("warmup"), run.record.warmup
    if servings is None:
        return
    yield "whether there was a warm-up", bool(warm_up.passes), servings > 0
    measured, missed = set(shape_classes(run.steps)), set(warm_up.uncovered_classes)
    yield "uncovered classes that were not measured", sorted(missed - measured), []
    covered = len(measured - missed) <= warm_up.classes
    yield "whether warmup.classes has the classes covered", covered, True
    if not servings:
        yield "what there is of a warm-up", warm_up.classes or [*warm_up.copies] or 0, 0
    name, attention = run.section("device").get("name"), run.section("engine").get("attention")
    repeats = len(run.records.numbers)
    if name is None or not servings:
        return
    device = device_class(name)
    checked = attention in device.attentions and device.attentions[attention].compared
    compared = bool(run.engine.reference_checks.compared)
    yield "whether attention was compared", compared, checked or None
    if not run.repeats_warm_up:
        return
    copied = copies_of(run.records.copies)
    yield "warmup.passes", warm_up.passes, len(run.steps) * servings / repeats
    yield "warmup.classes", warm_up.classes, len(measured)
    warm = {kind: copies.count for kind, copies in warm_up.copies.items()}
    expected = {kind: row["count"] * servings / repeats for kind, row in copied.items()}
    yield "copies in the warm-up", warm, expected
    if device.allocates:
        back = _compared_copies(run) * servings / repeats
        copies = run.engine.swap_checks.compared
        yield "whether copies were compared", bool(copies), back > 0 or None
        yield "engine.swap_checks.compared", copies, back


def _compared_copies(run: RunTables) -> int:
    """Resumptions whose blocks can be compared: swapped, or full and rebuilt or loaded."""
    rows = run.resumptions.merge(
        run.batch[[*OF_REQUEST, "step", "context_tokens"]], on=[*OF_REQUEST, "step"]
    )
    copied, size = rows["context_tokens"] > counts_of(rows["hit_tokens"]), run.records.block_size
    full = rebuilds_blocks(rows["policy"]) & (rows["tokens"] >= size)
    full_loads = rows["tokens"] - rows["recomputed_tokens"] >= size
    full |= loads_blocks(rows["policy"]) & full_loads
    return int(((copies_blocks(rows["policy"]) & copied) | full).sum())


def _of_repeats(run: RunTables) -> Iterator[Pair]:
    if run.records.settings.get("repeats") is None:
        return
    numbers = run.records.numbers
    yield "repeats of clock", [entry.repeat for entry in run.record.clock.repeats], numbers
    expected = numbers if run.by_clock else []
    yield "repeats of load", [entry.repeat for entry in run.record.load], expected
    yield "whether engine.leaked_blocks is recorded", run.engine.states("leaked_blocks"), True
    yield from _of_prefix_cache(run)


def _of_prefix_cache(run: RunTables) -> Iterator[Pair]:
    """Each repeat began with an empty prefix cache, and has the tables of its blocks."""
    emptied = {"emptied_by": RESET, "cached_blocks": 0}
    expected = [{"repeat": number} | emptied for number in run.records.numbers]
    caches = run.engine.prefix_cache
    yield "engine.prefix_cache", caches, expected if run.caches_prefixes else []
    for table in OF_PREFIX_CACHE:
        recorded = table.file in run.record.files
        yield f"whether {table.file} is recorded", recorded, run.caches_prefixes
