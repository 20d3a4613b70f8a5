"""The raw records of a repeat, made while the engine runs with as little overhead as possible.

This is all that an engine says of what it does: one `PassRecord` a forward pass, with a
`ScheduledRequest` for each request in it, one `PreemptionRecord` a preemption, one `Transfer` a
copy between the KV cache and the host, one `BlockHit` and one `BlockEviction` a block that is found
in the prefix cache and that leaves it, and four numbers a transformer block. `kvscope.run.recorder`
converts them to tables between repeats, when nothing is timed. Requests are named as the workload
names them.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from kvscope.plan.actions import RECOMPUTE, Action
from kvscope.tables.copies import HOST_CLOCK

NO_COUNTS: Mapping[str, int] = MappingProxyType({})


class ScheduledRequest(NamedTuple):
    """One request in one forward pass."""

    request_id: str
    computed: int  # tokens that the pass computes of it
    cached: int  # its tokens in the cache before the pass
    sampled: Sequence[int]  # the output token ids that the pass gave it
    row: int = 0  # its place among the rows of the kernels' batch
    hit: int = 0  # of `cached`, those that the pass found in the device's prefix cache
    loaded: int = 0  # of `cached`, those that jobs loaded before the pass
    saved: int = 0  # of `computed`, those whose activations the pass is to write to the host
    blocks: tuple[Sequence[int], ...] = ()  # its block ids by KV group; where KV events are traced
    counts: Mapping[str, int] = NO_COUNTS  # further columns of `batch`, of engines that have some


def no_rows() -> Sequence[ScheduledRequest]:
    """The batch of a pass that has not ended."""
    return ()


@dataclass(slots=True)
class PassRecord:
    """A forward pass. Times are ns of the platform's clock (`engine.clock`)."""

    schedule_start_ns: int
    schedule_end_ns: int
    finished_before: Collection[str]  # requests that ended since the previous pass
    preempted: int  # requests preempted since the previous pass, as the scheduler counts them
    waiting: int
    kv_blocks_free: int
    host_blocks_used: int
    output_ns: int = 0  # the sampled tokens are on the host
    end_ns: int = 0  # the scheduler has processed them
    # Called once nothing is timed: rows are not made while the engine runs.
    batch: Callable[[], Sequence[ScheduledRequest]] = no_rows
    load_wait_ns: int = 0  # before it, in which every request waited for copies
    group_blocks: tuple[int, ...] = ()  # in use, by KV group; of a model whose groups differ
    context_bytes: int | None = None  # of all blocks in use, where not all hold K and V


@dataclass(slots=True)
class PreemptionRecord:
    """A preemption, recorded just before the scheduler frees the request's blocks."""

    step: int  # the pass that was being scheduled
    time_ns: int
    request_id: str
    tokens: int  # tokens whose K and V were in the cache
    blocks: int  # of all KV groups
    group_blocks: tuple[int, ...] = ()  # of each; of a model whose groups differ
    shared: int = 0  # of its blocks, those that other running requests hold as well
    scheduled: int = 0  # tokens that the pass had blocks for before it gave them back
    action: Action = RECOMPUTE  # as carried out
    refused: bool = False  # the policy's action needs the host pool, which had no room
    predicted_s: float | None = None  # what the policy expected its action to cost


@dataclass(frozen=True)
class Transfer:
    """A copy between the KV cache and the host."""

    request_id: str | None  # None: of several requests of a pass
    direction: str  # copies.OUT or copies.IN
    kind: str  # copies.KV or copies.INPUTS
    blocks: int
    bytes: int
    start_ns: int | None  # of the platform's clock; on a GPU the copy is launched then
    end_ns: int | None
    seconds: Callable[[], float]  # of the copy itself, once the pass is over; NaN if not known
    rebuild_seconds: Callable[[], float] | None = None  # of K and V, after the copy
    clock: str = HOST_CLOCK  # that `seconds` were counted by
    step: int = 0  # the pass that it was done for
    job: "Job | None" = None  # of a copy that runs beside the passes


@dataclass(frozen=True)
class Job:
    """The scheduler's record of a copy that a KV connector ordered to run beside the passes."""

    number: int  # in the order in which jobs were ordered
    ordered_ns: int
    first_block: int  # place in its request of the first block
    loaded_blocks: Callable[[], int | None]  # of a store: of its blocks, those loaded since
    arrived_step: Callable[[], int | None]  # of a load: pass whose scheduling learned of its end
    awaited_step: int | None = None  # pass that gave its blocks away, and so waited for its end


class CachedBlock(NamedTuple):
    """A block of the KV cache that is full of tokens, and so is in the prefix cache."""

    block: int
    owner: str  # the request that computed it
    position: int  # its place in that request, and in every other one that finds it
    step: int  # the pass that computed its last token


class BlockHit(NamedTuple):
    """A block that a request found in the prefix cache when it was admitted or resumed."""

    step: int
    request_id: str
    found: CachedBlock
    in_use: bool  # other running requests hold it as well


class BlockEviction(NamedTuple):
    """A block that left the prefix cache, because another request needed its room."""

    step: int  # the pass that was being scheduled
    request_id: str  # that needed it
    lost: CachedBlock
    hits: int  # how often it was found


@dataclass
class Recording:
    """All records of one repeat."""

    passes: list[PassRecord] = field(default_factory=list)
    preemptions: list[PreemptionRecord] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    hits: list[BlockHit] = field(default_factory=list)
    evictions: list[BlockEviction] = field(default_factory=list)
    # One transformer block after another: pass, block, start and end in ns. Plain numbers, because
    # objects would keep Python's garbage collector busy.
    layers: "array[int]" = field(default_factory=lambda: array("q"))
    # The recorders of tables of other packages (`engine.added.RowRecorder`), by table.
    added: dict[str, Any] = field(default_factory=dict)
    # How often each request that has ended was preempted, as the scheduler counts.
    counted: dict[str, int] = field(default_factory=dict)

    def add_transfers(self, transfers: Iterable[Transfer]) -> None:
        """Add copies that were done for the last pass."""
        step = len(self.passes) - 1
        self.transfers += (replace(transfer, step=step) for transfer in transfers)
