"""The set-up: hardware, versions, settings, and which experiments differ in them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvscope.base.quantities import plural
from kvscope.base.time_sources import NOT_MEASURED
from kvscope.metrics.circumstances import percent
from kvscope.plan.traits import shared_settings, value_text
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.words import number_text
from kvscope.tables.runschema import NO_RECORD

GIB = 2**30
NANOSECONDS = 1_000_000_000
# Labels listed beside a value that only some experiments have, and their characters if several.
LABELS, LABELS_LENGTH = 3, 150


@dataclass(frozen=True)
class SetupFact:
    """A fact and its values: each with the experiments it holds for, '' if for all."""

    name: str
    values: tuple[tuple[str, str], ...]


def circumstances(study: StudyData) -> list[SetupFact]:
    """The facts of all experiments that ran; a fact that none recorded is left out."""
    ran = [run for run in study.runs if run.record is not NO_RECORD]
    facts = (_circumstance(name, fact, ran) for name, fact in _FACTS)
    return [circumstance for circumstance in facts if circumstance.values]


def faults(study: StudyData) -> list[tuple[str, str]]:
    """The known faults of imported runs, each once, with the experiments it holds for ('': all)."""
    holders: dict[str, list[str]] = {}
    for run in study.runs:
        for fault in run.record.faults:
            holders.setdefault(fault, []).append(run.label)
    everywhere = len(study.runs)
    return [
        (fault, "" if len(who) == everywhere else _holders(who)) for fault, who in holders.items()
    ]


def shared(study: StudyData) -> list[tuple[str, str]]:
    """The settings that all experiments share, as flat keys and text."""
    settings = shared_settings([run.settings for run in study.runs])
    return [(key, value_text(value)) for key, value in settings.items()]


def dates(study: StudyData) -> str:
    """When the experiments ran, in UTC: a minute, or from when to when."""
    # What others published may not tell when it ran.
    instants = (run.record.clock.run_start_utc_ns for run in study.runs)
    starts = [start for start in instants if start is not None]
    if not starts:
        return ""
    first, last = (_utc(instant) for instant in (min(starts), max(starts)))
    if first == last:
        return f"{first} UTC"
    same_day = first[:10] == last[:10]
    return f"{first} to {last[11:] if same_day else last} UTC"


def _utc(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // NANOSECONDS, UTC).strftime("%Y-%m-%d %H:%M")


def _circumstance(
    name: str, fact: Callable[[ReportedRun], str | None], runs: list[ReportedRun]
) -> SetupFact:
    holders: dict[str, list[str]] = {}
    for run in runs:
        if text := fact(run):
            holders.setdefault(text, []).append(run.label)
    same = len(holders) == 1
    return SetupFact(
        name, tuple((text, "" if same else _holders(who)) for text, who in holders.items())
    )


def _holders(labels: list[str]) -> str:
    names = "; ".join(labels)
    few = len(labels) <= LABELS and len(names) <= LABELS_LENGTH
    return names if few or len(labels) == 1 else plural(len(labels), "experiment")


def _recording(run: ReportedRun) -> str | None:
    """Session of a recording, and what is not in its tables."""
    server = run.record.recorded
    return "; ".join((f"session {server.session}", *server.notes)) if server else None


def _host(run: ReportedRun) -> str | None:
    return run.record.hardware.hostname


def _system(run: ReportedRun) -> str | None:
    return run.record.hardware.os


def _node(run: ReportedRun) -> str | None:
    """The node of a run that a pack made, and how many others ran on it at the time."""
    placement = run.record.placement
    if not placement.node:
        return None
    beside = plural(len(placement.neighbours), "other")
    return f"{placement.node}, {f'beside {beside}' if placement.neighbours else 'alone'}"


def _gpu_clocks(run: ReportedRun) -> str | None:
    """Clocks of the SMs of each GPU, before and after the run."""
    gpus = run.record.placement.gpus
    if not gpus:
        return None
    after = {gpu.uuid: gpu.sm_mhz for gpu in gpus.after}
    measured = [gpu for gpu in gpus.before if gpu.sm_mhz.isdecimal()]  # not '[N/A]'
    return (
        "; ".join(
            f"{gpu.uuid}: {gpu.sm_mhz} MHz before, {after.get(gpu.uuid, '?')} MHz after"
            for gpu in measured
        )
        or None
    )


def _setting(*path: str) -> Callable[[ReportedRun], str | None]:
    def of(run: ReportedRun) -> str | None:
        value: Any = run.settings
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else value_text(value)

    return of


def _processor(run: ReportedRun) -> str | None:
    hardware = run.record.hardware
    if not hardware.cpu:
        return None
    memory = f", {hardware.memory_bytes / GIB:.0f} GiB" if hardware.memory_bytes else ""
    return f"{hardware.cpu}, {plural(hardware.cores or 0, 'core')}{memory}"


def _gpus(run: ReportedRun) -> str | None:
    gpus = run.record.hardware.gpus
    if gpus is None:
        return None
    names = [f"{gpu.name} ({gpu.memory_bytes / GIB:.0f} GiB)" for gpu in gpus]
    text = ", ".join(names) or "none used"
    return f"{text}: {NOT_MEASURED}, a CPU was in its place" if run.rehearsed else text


def _device(run: ReportedRun) -> str | None:
    device = run.settings.get("device")
    if not device:
        return None
    return f"{device.get('name')}, {plural(device.get('threads', 1), 'thread')}"


def _software(run: ReportedRun) -> str | None:
    versions = run.record.versions
    named = [versions.get(name) for name in ("vllm", "torch")]
    named.append(f"Python {versions['python']}" if versions.get("python") else None)
    return ", ".join(filter(None, named)) or None


def _kvscope(run: ReportedRun) -> str | None:
    versions = run.record.versions
    commit = versions.get("kvscope_commit")
    return f"{versions.get('kvscope', '?')}{f' (commit {commit})' if commit else ''}"


def _model(run: ReportedRun) -> str | None:
    model = run.settings.get("model")
    if not model:
        return None
    layers, width, dtype = (model.get(key) for key in ("layers", "hidden_size", "dtype"))
    return f"{model.get('name')}: {layers} layers, hidden size {width}, {dtype}"


def _repeats(run: ReportedRun) -> str | None:
    """Number of repeats, the stopping rule, and whether it was met."""
    repeats = run.record.repeats
    if not repeats or repeats.until is None:
        return _setting("repeats")(run)
    budget_s = repeats.budget_s  # absent in older records
    most = f"{budget_s:g} s" if budget_s else f"{repeats.max} repeats"
    return (
        f"{repeats.measured}: at least {repeats.min}, then until ± {percent(repeats.until)} was "
        f"known or {most} were over"
    )


def _warm_up(run: ReportedRun) -> str | None:
    if not run.record.states("warmup"):
        return None
    rounds = run.settings.get("warmup")
    if rounds == 0:  # as on a virtual clock, where nothing is warm or cold
        return "none"
    text = f"{plural(rounds, 'round')} of the whole workload" if rounds is not None else "yes"
    missed = len(run.record.warmup.uncovered_classes)
    return text + (f"; {plural(missed, 'shape class')} not met before" if missed else "")


def _profiler(run: ReportedRun) -> str | None:
    profiler = run.record.profiler
    if not profiler:
        return None
    if profiler.used == "none":
        return f"none: {profiler.reason or 'not requested'}"
    complaint = f"; {profiler.reason}" if profiler.reason else ""
    return f"{profiler.used} {profiler.version or ''}{complaint}".strip()


def _tracing(run: ReportedRun) -> str | None:
    tracing = run.record.tracing
    if not tracing:
        return None
    strides = {
        "forward passes": tracing.step_stride,
        "layers": tracing.layer_stride,
        "KV heads": tracing.head_stride,
    }
    some = [f"1 of {stride} {things}" for things, stride in strides.items() if stride > 1]
    clock = f"; clock {tracing.clock.name}" if tracing.clock else ""
    return f"{', '.join([tracing.name, *some])}{clock}"


def _block(run: ReportedRun) -> str | None:
    engine = run.record.engine
    if engine.block_bytes is None:
        return None
    sizes = {"": engine.block_bytes, " as activations": engine.input_block_bytes}
    kib = [f"{number_text(size / 1024)} KiB{words}" for words, size in sizes.items() if size]
    return f"{plural(engine.block_size, 'token')}, {' or '.join(kib)} over all layers"


def _files(run: ReportedRun) -> str | None:
    return "as recorded: size and SHA-256 of each" if run.complete else run.status


def _imported(run: ReportedRun) -> str | None:
    source = run.record.imported_from
    return ", ".join(entry.file for entry in source.files) if source else None


_FACTS: tuple[tuple[str, Callable[[ReportedRun], str | None]], ...] = (
    ("Machine", _host),
    ("Processor", _processor),
    ("GPU", _gpus),
    ("Node", _node),
    ("GPU clocks", _gpu_clocks),
    ("Operating system", _system),
    ("Device of the engine", _device),
    ("Engine", _software),
    ("kvscope", _kvscope),
    ("Model", _model),
    ("Block", _block),
    ("Seed", _setting("seed")),
    ("Repeats", _repeats),
    ("Warm-up", _warm_up),
    ("Profiler", _profiler),
    ("KV events", _tracing),
    ("Imported from", _imported),
    ("Recording", _recording),
    ("Files", _files),
)
