"""The record of a run, which every reader holds: `run.json`, validated, typed and frozen.

docs/TRACE_SPEC.md has meanings. Files of earlier versions lack keys; the defaults for these are
here.
"""

from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema

from kvscope.base.limits import LONGEST_REPEAT_S

OTHER_CLOCKS = 2
"""Since version 2, `clock.repeats` has other clocks, and `warmup.copies` the rates of copies."""
TRANSFERS = 3
"""Since version 3, runs have the table `transfers`."""
EVIDENCE = 4
"""Since version 4, run.json lists the `evidence` that a run has."""
VERSION = JOBS = 5
"""Since version 5, copies beside the passes are in a table of their own, not in `transfers`."""
READABLE = (1, OTHER_CLOCKS, TRANSFERS, EVIDENCE, VERSION)

Whole = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[Real, Field(ge=0, lt=LONGEST_REPEAT_S)]
Texts = list[str]
# A name that is used as one component of a path: it has no separator.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$", max_length=200)]


def _as_written(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Keep an integer: a double does not hold the ticks and nanoseconds of all clocks."""
    real = validate(value)
    return value if isinstance(value, int) else real


Exact = Annotated[Real, WrapValidator(_as_written)]


class _NotNull:
    """Refuses null where a key is present; its default may be None all the same."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        (present,) = (kind for kind in get_args(source) if kind is not NoneType)
        return handler.generate_schema(present)


T = TypeVar("T")
Absent = Annotated[T | None, _NotNull()]
"""The value of a key that may be absent, which is then None, but never null."""

COMPLETE, FAILED = "complete", "failed"
"""The states of a run."""


class Record(BaseModel):
    """A group of keys: known keys have the declared types, unknown keys are kept.

    Later versions may add keys. A key that the file lacks has its default.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    def states(self, key: str) -> bool:
        """Whether the file has the key."""
        return key in self.model_fields_set

    def stated(self, key: str) -> Any:
        """The value that the file has of a key, declared or not; None if it has none."""
        return getattr(self, key) if self.states(key) else None

    def as_written(self) -> dict[str, Any]:
        """The keys of the file with their values, as a JSON object."""
        return self.model_dump(exclude_unset=True, by_alias=True)


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
    cpu_s: Absent[Real] = None
    thread_cpu_s: Absent[Real] = None
    apart_s: Absent[Real] = None
    copy_cpu_s: Absent[Real] = None
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
    max: Absent[Whole] = None  # of runs before `budget_s`
    until: Annotated[Real, Field(gt=0)] | None = None
    budget_s: Annotated[Real, Field(gt=0)] | None = None
    measured: Whole
    half_width_share: Annotated[Real, Field(ge=0)] | None = None
    reached: bool | None = None


class LoadRecord(Record):
    """Load of the machine beside a repeat, as shares of the CPU time of all cores."""

    repeat: Annotated[Whole, Field(lt=2**31)]
    cores: Annotated[Whole, Field(gt=0)] | None = None
    steal_share: Real | None = None
    other_cpu_share: Real | None = None
    waiting_share: Real | None = None  # of the main thread, in runs before `waited_s`

    @property
    def other_cpus(self) -> float | None:
        """Cores that other processes used, in the mean; None if not known."""
        share, cores = self.other_cpu_share, self.cores
        return None if share is None or cores is None else share * cores


class ClockRecord(Record):
    """The run's clock."""

    run_start_utc_ns: Whole | None = None
    run_end_utc_ns: Absent[Whole] = None  # of runs before it was recorded
    repeats: list[RepeatRecord]


class ProfilerRecord(Record):
    """The requested profiler, and the profiler that was used."""

    used: str
    requested: str | None = None
    reason: str | None = None
    version: str | None = None


class GpuRecord(Record):
    """A GPU."""

    name: str
    memory_bytes: Whole


class HardwareRecord(Record):
    """The machine."""

    hostname: str | None = None
    cpu: str | None = None
    cores: Whole | None = None
    memory_bytes: Whole | None = None
    os: str | None = None
    gpus: Absent[list[GpuRecord]] = None


class CopiesRecord(Record):
    """Copies of one kind: how many, and the fastest of them."""

    count: Whole
    fastest_bytes_per_s: Annotated[Real, Field(ge=0)]


class WarmUpRecord(Record):
    """The warm-up: its forward passes, shape classes that it did not cover, and its copies."""

    passes: Whole = 0
    classes: Whole = 0
    uncovered_classes: Texts = []
    copies: dict[str, CopiesRecord] = {}


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
    largest_error: Real = 0.0
    tolerance: Real = 0.0


class EngineRecord(Record):
    """The engine: its KV cache and host pools as allocated, and the checks of its warm-up."""

    kv_blocks_total: Whole | None = None
    block_size: Annotated[Whole, Field(lt=2**31)] = 0
    block_bytes: Annotated[Exact, Field(ge=0)] | None = None
    layers: Annotated[Whole, Field(lt=2**31)] | None = None
    device: str | None = None
    copies_awaited: Absent[bool] = None
    computes: bool = True
    times_layers: bool = True
    host_blocks_total: Absent[Whole] = None
    host_memory: str | None = None
    pieces_per_block: Whole | None = None
    input_blocks_total: Annotated[Whole, Field(alias="activation_blocks_total")] = 0
    input_block_bytes: Annotated[Whole, Field(alias="activation_block_bytes")] = 0
    leaked_blocks: list[LeakRecord] = []
    prefix_cache: list[dict[str, Any]] = []  # how it was emptied before each repeat
    reference_checks: ComparisonRecord = ComparisonRecord()
    swap_checks: ComparisonRecord = ComparisonRecord()


class ClockSampleRecord(Record):
    """A reading of the clock of KV events and of the host's together."""

    ticks: Absent[Exact] = None
    host_ns: Absent[Exact] = None
    uncertainty_ns: Absent[Exact] = None


class TraceClockRecord(Record):
    """The clock of the KV events."""

    name: str
    ns_per_tick: Absent[Real] = None
    resolution_ns: Real = 0.0  # the step between two readings; 0 if it was not measured
    samples: list[ClockSampleRecord] = []


class TracingRecord(Record):
    """The tracing of KV events: sampling, clock, and counts."""

    name: str
    step_stride: Annotated[Whole, Field(ge=1)] = 1
    layer_stride: Annotated[Whole, Field(ge=1)] = 1
    head_stride: Annotated[Whole, Field(ge=1)] = 1
    layers: Absent[list[Whole]] = None
    kv_heads: list[Whole] | None = None
    tile_tokens: Whole | None = None
    passes: Absent[Whole] = None
    events: Whole = 0
    dropped_events: Whole | None = None
    clock: TraceClockRecord | None = None


class ImportedFileRecord(Record):
    """A published file."""

    file: str
    sha256: str = ""


class ImportRecord(Record):
    """The origin of an imported run: kind, series, and published files."""

    kind: str
    series: str | None = None
    files: list[ImportedFileRecord]


class ServerRecord(Record):
    """The server that a recording is of, and which of its passes are in the recording."""

    prefix_caching: bool = False
    connector: str | None = None
    overlapping: bool = False
    first_step: Whole = 0
    session: Whole = 1  # number of the server's start
    notes: list[str] = []  # sentences on what is not in the tables
    missing: list[str] = []  # of these, on passes that are missing between others

    @model_validator(mode="after")
    def _counts_tokens(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name.endswith("_tokens") and not (isinstance(value, int) and 0 <= value < 2**63):
                raise ValueError(f"{name} is {value!r:.60}, expected a number of tokens")
        return self

    def tokens(self, name: str) -> int:
        """A setting of the server that is a number of tokens, by its name; 0 without it."""
        return self.stated(name) or 0


class WorkloadRecord(Record):
    """The workload: its name, and its files with their SHA-256."""

    workload: str | None = None


class NeighbourRecord(Record):
    """Another member of the pack, that ran at the same time on the same node."""

    member: str


class GpuClocksRecord(Record):
    """The state of a GPU, as nvidia-smi prints it."""

    uuid: str
    sm_mhz: str = Field(alias="clocks.sm")


class GpusRecord(Record):
    """The GPUs of a run, before and after it."""

    before: list[GpuClocksRecord] = []
    after: list[GpuClocksRecord] = []


class PlacementRecord(Record):
    """The pack that made the run, its node and its neighbours there; the clocks of the GPUs."""

    node: str | None = None
    neighbours: list[NeighbourRecord] = []
    gpus: Absent[GpusRecord] = None


class RunRecord(Record):
    """The contents of run.json."""

    schema_version: int = Field(VERSION, alias="schema")
    experiment_id: FileName
    status: Literal["complete", "failed"]
    files: dict[FileName, FileRecord]
    reason: str | None = None
    time_source: Absent[str] = None
    evidence: Texts = []
    profiler: Absent[ProfilerRecord] = None
    versions: dict[str, str | None] = {}
    hardware: HardwareRecord = HardwareRecord()
    timings_s: dict[str, Seconds] = {}
    clock: ClockRecord = ClockRecord(repeats=[])
    campaign: Absent[CampaignRecord] = None
    repeats: Absent[StoppingRecord] = None
    load: list[LoadRecord] = Field([], validation_alias=AliasChoices("load", "disturbance"))
    warmup: WarmUpRecord = WarmUpRecord()
    workload: WorkloadRecord = WorkloadRecord()
    placement: PlacementRecord = PlacementRecord()
    engine: EngineRecord = EngineRecord()
    tracing: Absent[TracingRecord] = None  # of runs with KV events
    imported_from: Absent[ImportRecord] = None  # of imported runs
    recorded: Absent[ServerRecord] = None  # of recordings of a server
    faults: Texts = []

    @property
    def complete(self) -> bool:
        """Whether everything was measured that was to be."""
        return self.status == COMPLETE

    @property
    def why_failed(self) -> str:
        """The reason of a failure."""
        return self.reason or "no reason recorded"


NO_RECORD = RunRecord.model_construct(experiment_id="", status=FAILED, files={})
"""The record of an experiment without run.json."""
