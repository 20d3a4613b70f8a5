"""The timeline of all that was recorded, and the tables of KV events."""

from kvscope.tables.column import I32, I64, TEXT, Table, derived, key, told
from kvscope.tables.columns import ATTRIBUTION, REPEAT, STEP

TIMELINE = Table(
    "timeline",
    "one interval of anything that was recorded",
    (
        derived("start_ns", I64, "nanoseconds since the run's start, host monotonic clock"),
        derived("end_ns", I64, "as start_ns"),
        derived("source", TEXT, "'host', 'nvtx' or 'gpu': who measured it"),
        derived("kind", TEXT, "'repeat', 'step', 'layer', 'request', 'preemption', 'range', …"),
        derived("name", TEXT, "what it is called"),
        derived("track", TEXT, "where a viewer draws it"),
        *ATTRIBUTION,
        derived("request_id", TEXT, "request it belongs to; null if none"),
    ),
)

KV_EVENTS = Table(
    "kv_events",
    "one access of an attention kernel to one block of the KV cache",
    (
        REPEAT,
        STEP,
        told("layer", I32, "transformer block, from 0"),
        derived("request_id", TEXT, "request whose block it is; null if no request of the batch"),
        derived("phase", TEXT, "what the request did in this pass: 'prefill' or 'decode'"),
        told("kind", TEXT, "'k_read', 'v_read', 'k_write' or 'v_write'"),
        told("kv_head", I32, "KV head; null where one event stands for all heads"),
        told("block", I32, "physical block of the KV cache"),
        derived("block_position", I32, "the block's place in the request, from 0"),
        told("offset_tokens", I32, "first token slot touched, within the block"),
        told("tokens", I32, "token slots touched, from there on"),
        told("start_ns", I64, "nanoseconds since the run's start, host monotonic clock"),
        told("end_ns", I64, "as start_ns"),
        told(
            "worker",
            I32,
            "CPU thread that did it, or thread block of a GPU, by its place in the kernel",
        ),
        told("sm", I32, "the GPU's streaming multiprocessor; null on a CPU"),
    ),
)

KV_KERNELS = Table(
    "kv_kernels",
    "one traced attention kernel: the write or the read of one layer of one forward pass",
    (
        REPEAT,
        STEP,
        key("layer", I32, "transformer block, from 0"),
        derived("phase", TEXT, "phase of the pass: 'prefill', 'decode' or 'mixed'"),
        key("kernel", TEXT, "'write' (of the new tokens' K and V) or 'attention' (reads them)"),
        told("start_ns", I64, "nanoseconds since the run's start, host monotonic clock"),
        told("end_ns", I64, "as start_ns"),
        derived("expected_events", I64, "events that the batch must cause, from its lengths alone"),
        derived("events", I64, "events recorded"),
        told("dropped_events", I64, "events counted but not recorded: the buffer was full"),
        derived("residual_ns", I64, "farthest an event lies outside of the kernel; 0 if none does"),
    ),
)
