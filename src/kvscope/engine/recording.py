"""The raw records of a repeat, made while vLLM runs with as little overhead as possible.

There is one `PassRecord` per forward pass, one `PreemptionRecord` per preemption, one `Transfer`
per copy of a request's blocks, and four numbers per transformer block. Records of passes refer to
vLLM's own objects, which vLLM creates for every pass and does not change afterwards. They are
converted to tables between repeats (`kvscope.run.recorder`), when nothing is timed.
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
    finished_before: set[str]  # requests that ended since the previous pass
    preempted: int  # requests preempted since the previous pass, as vLLM counts them
    waiting: int
    kv_blocks_free: int
    host_blocks_used: int
    output_ns: int = 0  # the sampled tokens are on the host
    end_ns: int = 0  # vLLM has processed them
    output: Any = None  # vLLM's ModelRunnerOutput
    # vLLM's blocks, whose ids never change, by internal id; where KV events are traced.
    block_tables: dict[str, list[Any]] | None = None


@dataclass(slots=True)
class PreemptionRecord:
    """One preemption, recorded just before vLLM frees the request's blocks."""

    step: int  # the pass that was being scheduled
    time_ns: int
    request_id: str  # vLLM's internal id
    tokens: int  # tokens whose K and V were in the cache
    blocks: int
    action: Action = RECOMPUTE  # as carried out
    refused: bool = False  # the policy's action copies blocks, but the host pool was full
    predicted_s: float | None = None  # what the policy expected its action to cost


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
