"""The schema of `run.json`, on whose types every reader relies. docs/TRACE_SPEC.md has meanings."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvscope.limits import LONGEST_REPEAT_S
from kvscope.reading import short_repr

OTHER_CLOCKS = 2
"""Since version 2, `clock.repeats` has other clocks, and `warmup.copies` the rates of copies."""
TRANSFERS = 3
"""Since version 3, runs have the table `transfers`."""
VERSION = EVIDENCE = 4
"""Since version 4, run.json lists the `evidence` that a run has."""
READABLE = (1, OTHER_CLOCKS, TRANSFERS, VERSION)

Whole = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[Real, Field(ge=0, lt=LONGEST_REPEAT_S)]
Texts = list[str]
# A name that is used as one component of a path: it has no separator.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$", max_length=200)]


ABSENT: Any = None  # the default of a key that may be absent, but not null


class Record(BaseModel):
    """A group of keys: known keys have the declared types, unknown keys are kept.

    Later versions may add keys.
    """

    model_config = ConfigDict(extra="allow")


class FileRecord(Record):
    """A recorded file."""

    bytes: Whole
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RoundRecord(Record):
    """The round that a repeat was measured in: of which campaign, which round, at which place."""

    campaign: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    number: Annotated[Whole, Field(lt=2**31)]
    place: Annotated[Whole, Field(lt=2**31)]


class RepeatRecord(Record):
    """When a repeat ran, on the host's monotonic clock, and what its threads did meanwhile."""

    repeat: Annotated[Whole, Field(lt=2**31)]
    start_ns: Annotated[int, Field(strict=True, gt=-(2**62), lt=2**62)]
    duration_s: Seconds
    raw_s: Real | None = None
    cpu_s: Real = ABSENT
    thread_cpu_s: Real = ABSENT
    apart_s: Real = ABSENT
    copy_cpu_s: Real = ABSENT
    ran_s: Annotated[Real, Field(ge=0)] | None = None
    waited_s: Annotated[Real, Field(ge=0)] | None = None
    round: RoundRecord | None = None
    profiled: bool = False


class CampaignRecord(Record):
    """The campaign in which the run was measured: which experiments, and how they took turns."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    design: Literal["rounds", "groups", "sittings"]
    members: Texts
    reference: str | None = None


class StoppingRecord(Record):
    """The requested repeats, and the half width of the interval that they reached."""

    min: Whole
    max: Whole = ABSENT  # of runs before `budget_s`
    until: Annotated[Real, Field(gt=0)] | None = None
    budget_s: Annotated[Real, Field(gt=0)] | None = None
    measured: Whole
    half_width_share: Annotated[Real, Field(ge=0)] | None = None
    reached: bool | None = None


class DisturbanceRecord(Record):
    """Whether other work on the machine disturbed a repeat, and the reason."""

    repeat: Annotated[Whole, Field(lt=2**31)]
    disturbed: bool
    why: str = ""
    shared: str = ""
    cores: Annotated[Whole, Field(gt=0)] = ABSENT
    steal_share: Real | None = None
    other_cpu_share: Real | None = None
    neighbour_cpu_share: Real | None = None
    waiting_share: Real | None = None
    other_run: bool = ABSENT
    work_s: Annotated[Real, Field(gt=0)] | None = None


class ClockRecord(Record):
    """The run's clock."""

    run_start_utc_ns: Whole | None = None
    run_end_utc_ns: Whole = ABSENT  # of runs before it was recorded
    repeats: list[RepeatRecord]


class ProfilerRecord(Record):
    """The requested profiler, and the one that was used."""

    used: str
    requested: str | None = None
    reason: str | None = None
    version: str | None = None


class GpuRecord(Record):
    """One GPU."""

    name: str
    memory_bytes: Whole


class HardwareRecord(Record):
    """The machine."""

    hostname: str | None = None
    cpu: str | None = None
    cores: Whole | None = None
    memory_bytes: Whole | None = None
    os: str | None = None
    gpus: list[GpuRecord] = []


class CopiesRecord(Record):
    """Copies of one kind: how many, and the fastest of them."""

    count: Whole
    fastest_bytes_per_s: Annotated[Real, Field(ge=0)]


class WarmUpRecord(Record):
    """The warm-up: its forward passes, shape classes that it did not cover, and its copies."""

    passes: Whole = 0
    uncovered_classes: Texts = []
    copies: dict[str, CopiesRecord] = ABSENT


class LeakRecord(Record):
    """Blocks still in use after a repeat."""

    repeat: Whole
    kv_blocks: Whole
    host_blocks: Whole


class ComparisonRecord(Record):
    """How many results of the warm-up were compared with a reference, and how many differ."""

    compared: Whole = 0
    differing: Whole = 0
    first: str = ""


class EngineRecord(Record):
    """The engine: its KV cache as allocated, and the checks of its warm-up."""

    kv_blocks_total: Whole | None = None
    block_size: Annotated[Whole, Field(lt=2**31)] = 0
    block_bytes: Annotated[Real, Field(ge=0)] | None = None
    layers: Annotated[Whole, Field(lt=2**31)] | None = None
    device: str | None = None
    copies_awaited: bool = False
    computes: bool = True
    times_layers: bool = True
    leaked_blocks: list[LeakRecord] = []
    reference_checks: ComparisonRecord = ABSENT
    swap_checks: ComparisonRecord = ABSENT


class TraceClockRecord(Record):
    """The clock of the KV events."""

    name: str
    samples: list[dict[str, Real]] = []


class TracingRecord(Record):
    """The tracing of KV events: sampling, clock, and counts."""

    name: str
    step_stride: Annotated[Whole, Field(ge=1)] = 1
    layer_stride: Annotated[Whole, Field(ge=1)] = 1
    head_stride: Annotated[Whole, Field(ge=1)] = 1
    layers: list[Whole] = ABSENT
    events: Whole = 0
    dropped_events: Whole | None = None
    clock: TraceClockRecord | None = None


class ImportedFileRecord(Record):
    """A published file."""

    file: str


class ImportRecord(Record):
    """The origin of an imported run: kind, series, and published files."""

    kind: str
    series: str | None = None
    files: list[ImportedFileRecord]


class RunRecord(Record):
    """The contents of run.json."""

    model_config = ConfigDict(extra="allow", revalidate_instances="always")

    experiment_id: FileName
    status: Literal["complete", "failed"]
    files: dict[FileName, FileRecord]
    reason: str | None = None
    time_source: str = ABSENT
    evidence: Texts = []
    profiler: ProfilerRecord = ABSENT
    versions: dict[str, str | None] = {}
    hardware: HardwareRecord = ABSENT
    timings_s: dict[str, Seconds] = {}
    clock: ClockRecord = ABSENT
    campaign: CampaignRecord = ABSENT
    repeats: StoppingRecord = ABSENT
    disturbance: list[DisturbanceRecord] = []
    warmup: WarmUpRecord = ABSENT
    engine: EngineRecord = ABSENT
    tracing: TracingRecord = ABSENT
    imported_from: ImportRecord = ABSENT
    faults: Texts = []


def schema_problem(facts: Any) -> str | None:
    """The first problem of the contents of run.json, in words; None if they are valid."""
    if not isinstance(facts, dict):
        return f"must be one JSON object, not {type(facts).__name__}"
    if facts.get("schema") not in READABLE:
        readable = f"{READABLE[0]} to {READABLE[-1]}"
        return f"schema is {facts.get('schema')!r:.60}, this kvscope reads {readable}"
    try:
        RunRecord.model_validate(facts)
    except ValidationError as error:
        key, message = first_fault(error)
        first = error.errors(include_url=False)[0]
        shown = "" if first["type"] == "missing" else f" ({first['input']!r:.60})"
        return f"key {key}{shown}: {message}"
    return None


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The dotted key of the first fault that pydantic found, '' for the whole; and its message."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def damage(error: ValidationError) -> str:
    """The same in words for a file: 'damaged, key files.a: Field required'."""
    key, message = first_fault(error)
    return f"damaged, key {short_repr(key)[1:-1]}: {message}" if key else f"damaged, {message}"
