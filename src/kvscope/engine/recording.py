"""What is noted while vLLM runs: raw, by reference, so that noting costs next to nothing.

One `PassRecord` a forward pass, one `PreemptionRecord` a preemption, one `Transfer` a copy of a
request's blocks, four numbers a transformer block. Passes hold vLLM's own objects (which vLLM makes
anew for every pass and does not change afterwards); turning them into tables happens between
repeats (`kvscope.run.recorder`), outside anything that is timed.
"""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvscope.actions import RECOMPUTE, Action

if TYPE_CHECKING:
    from kvscope.engine.overflow.copies import Transfer


@dataclass(slots=True)
class PassRecord:
    """One forward pass. Times are ns of the platform's clock (`engine.clock`)."""

    schedule_start_ns: int
    schedule_end_ns: int
    scheduled: Any  # vLLM's SchedulerOutput
    finished_before: set[str]  # requests that ended since the pass before
    preempted: int  # requests preempted since the pass before, as vLLM counts them
    waiting: int
    kv_blocks_free: int
    host_blocks_used: int
    output_ns: int = 0  # the sampled tokens are on the host
    end_ns: int = 0  # vLLM has taken them in
    output: Any = None  # vLLM's ModelRunnerOutput
    # vLLM's blocks, whose ids never change, by internal id; where KV events are traced.
    block_tables: dict[str, list[Any]] | None = None


@dataclass(slots=True)
class PreemptionRecord:
    """One preemption, noted just before vLLM takes the request's blocks away."""

    step: int  # the pass that was being scheduled
    time_ns: int
    request_id: str  # vLLM's internal id
    tokens: int  # tokens whose K and V were in the cache
    blocks: int
    action: Action = RECOMPUTE  # what became of its blocks
    refused: bool = False  # they were to be copied, and the pool had no room


@dataclass
class Recording:
    """All records of one repeat."""

    passes: list[PassRecord] = field(default_factory=list)
    preemptions: list[PreemptionRecord] = field(default_factory=list)
    transfers: list["Transfer"] = field(default_factory=list)
    # One transformer block after another: pass, block, start and end in ns. Plain numbers, because
    # objects would keep Python's garbage collector busy.
    layers: "array[int]" = field(default_factory=lambda: array("q"))
    # How often each request that has ended was preempted, as vLLM counts, by its internal id.
    counted: dict[str, int] = field(default_factory=dict)
