"""The schema of every table (names, types, units, meaning), and functions to read and write tables.

The tables of `docs/TRACE_SPEC.md` are generated from this module. A column keeps its name, unit and
meaning; a change that breaks a reader increments SCHEMA_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvscope import limits
from kvscope.errors import BadInput
from kvscope.files import atomic_path
from kvscope.reading import one_line, open_file

if TYPE_CHECKING:  # the workflow, which reads no table, does without
    import pandas as pd

SCHEMA_VERSION = 3
READABLE = ("2", "3")
"""Versions of files that can be read; `kvscope.earlier` makes `transfers` of what version 2 has."""

I32, I64, F64, BOOL, TEXT = pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string()
TOKEN_IDS = pa.list_(pa.int32())
COUNTS = pa.list_(pa.int32())
TEXTS = pa.list_(pa.string())
DIM3 = pa.list_(pa.int32(), 3)


@dataclass(frozen=True)
class Column:
    """One column: its name, Arrow type, and meaning (unit included).

    `optional`: files of earlier releases and imports may lack it; it is null there.
    """

    name: str
    type: pa.DataType
    meaning: str
    optional: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its name, the meaning of a row, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with table name and schema version as metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"meaning": c.meaning}) for c in self.columns],
            metadata={"kvscope.table": self.name, "kvscope.schema_version": str(SCHEMA_VERSION)},
        )

    @property
    def file(self) -> str:
        """The table's file name."""
        return f"{self.name}.parquet"

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]

    def empty(self) -> pd.DataFrame:
        """A DataFrame without rows, with this table's columns and types."""
        frame: pd.DataFrame = self.schema.empty_table().to_pandas()
        return frame


_REPEAT = Column("repeat", I32, "repeat of the measured part, from 0; warm-up is not recorded")
_STEP = Column("step", I32, "forward pass within the repeat, from 0")
_REQUEST = Column("request_id", TEXT, "request, as numbered by the workload from 0")
_SOURCE = Column(
    "time_source",
    TEXT,
    "'measured'; 'modeled' by a cost model; 'published' by other authors; 'rehearsed', not "
    "measured, by a CPU in the place of a GPU",
)
_RECOMPUTED = Column("recomputed_tokens", I32, "of these, tokens computed before and lost since")
_CONVERSATION = Column("conversation", TEXT, "conversation that it is a turn of, or null", True)
_TURN = Column("turn", I32, "turn of the conversation, from 0", True)
_SINCE = "seconds since the repeat's start, host monotonic clock"
_NSYS = "nanoseconds since the capture's start, Nsight Systems' clock"

WORKLOAD = Table(
    "workload",
    "one request of the workload",
    (
        _REQUEST,
        Column(
            "arrival_s",
            F64,
            f"when the request is due at the engine, {_SINCE}; null if it follows others, or comes "
            "before a pass",
        ),
        Column("prompt_tokens", I32, "length of the prompt"),
        Column("output_tokens", I32, "tokens to generate (end-of-sequence is ignored)"),
        Column("prompt_token_ids", TOKEN_IDS, "the prompt: seeded random token ids"),
        _CONVERSATION,
        _TURN,
        Column("after", TEXTS, "requests that must have finished before it comes; or null", True),
        Column("think_s", F64, "seconds from the end of the last of these to its arrival", True),
        Column("output_token_ids", TOKEN_IDS, "the tokens that must come out, or null", True),
        Column("arrival_pass", I32, "pass before which it comes, or null", True),
        Column("abort_pass", I32, "pass before which it is aborted, or null", True),
    ),
)

REQUESTS = Table(
    "requests",
    "one request of one repeat",
    (
        _REPEAT,
        _REQUEST,
        Column("arrival_s", F64, "when the request came to the engine, " + _SINCE),
        Column("prompt_tokens", I32, "length of the prompt"),
        Column("output_tokens", I32, "tokens generated"),
        Column("aborted", BOOL, "it was aborted before its last token"),
        Column("first_scheduled_s", F64, "start of its first forward pass, " + _SINCE),
        Column("first_token_s", F64, "end of the pass that gave its first token, " + _SINCE),
        Column(
            "finished_s",
            F64,
            "end of the pass that gave its last token, or when it was aborted, " + _SINCE,
        ),
        Column("preemptions", I32, "times it was preempted, as vLLM counts"),
        Column("output_sha256", TEXT, "SHA-256 of its output token ids as little-endian int32"),
        _CONVERSATION,
        _TURN,
        Column(
            "chosen_sha256",
            TEXT,
            "the same of the tokens that the model would have given, where the workload's came out",
            True,
        ),
    ),
)

STEPS = Table(
    "steps",
    "one forward pass",
    (
        _REPEAT,
        _STEP,
        Column("phase", TEXT, "'prefill', 'decode', or 'mixed' if the pass does both"),
        Column("start_s", F64, "when scheduling of the pass began, " + _SINCE),
        Column("duration_s", F64, "schedule, forward pass, sampling and bookkeeping, seconds"),
        Column("schedule_s", F64, "the scheduler's part of duration_s, seconds"),
        Column("forward_s", F64, "from the schedule to the sampled tokens, seconds"),
        Column("scheduled_tokens", I32, "tokens computed by the pass"),
        Column("prefill_tokens", I32, "of these, tokens of prompts or of recomputation"),
        Column("decode_tokens", I32, "of these, tokens of requests that decode"),
        _RECOMPUTED,
        Column("sampled_tokens", I32, "output tokens the pass gave"),
        Column("requests", I32, "requests in the batch"),
        Column("resumed_requests", I32, "of these, requests with batch.resumed"),
        Column("preempted_requests", I32, "preempted while the pass was scheduled, as vLLM counts"),
        Column("waiting_requests", I32, "requests waiting after the pass was scheduled"),
        Column("kv_blocks_used", I32, "blocks of the KV cache in use during the pass, all groups"),
        Column("kv_blocks_total", I32, "blocks of the KV cache that requests can use"),
        Column(
            "kv_tokens_used",
            I64,
            "tokens of requests in the cache after the pass; groups with a window keep the last",
        ),
        Column("host_blocks_used", I32, "blocks in use in the host pool"),
        Column("host_blocks_total", I32, "blocks of the host pool; 0 where there is none"),
        Column("stalled", BOOL, "the pass took far longer than others of its class"),
        _SOURCE,
        Column(
            "load_wait_s",
            F64,
            "seconds before the pass in which there was none, as every request waited for copies "
            "of vLLM's offloading",
            True,
        ),
        Column(
            "group_blocks_used",
            COUNTS,
            "of kv_blocks_used, those of each row of kv_groups; null where one group keeps all",
            True,
        ),
        Column("kv_bytes_used", I64, "bytes of these blocks without padding, filled or not", True),
        Column(
            "context_bytes",
            I64,
            "bytes of the blocks in use, filled or not, where some hold activations in place of K "
            "and V, or ids, which take none; null where all hold K and V",
            True,
        ),
    ),
)

BATCH = Table(
    "batch",
    "one request in one forward pass",
    (
        _REPEAT,
        _STEP,
        _REQUEST,
        Column("phase", TEXT, "'prefill' (prompt or recomputation) or 'decode'"),
        Column("scheduled_tokens", I32, "its tokens computed by the pass"),
        _RECOMPUTED,
        Column("context_tokens", I32, "its tokens in the cache before the pass"),
        Column("sampled_tokens", I32, "output tokens the pass gave it"),
        Column("resumed", BOOL, "it was preempted and has not given a token since"),
        Column("saved_tokens", I32, "of scheduled_tokens, those whose activations are saved", True),
        Column(
            "hit_tokens",
            I32,
            "of context_tokens, those found in the prefix cache as the pass admitted or resumed it",
            True,
        ),
        Column("own_hit_tokens", I32, "of hit_tokens, those of blocks that it had computed", True),
        Column(
            "loaded_tokens",
            I32,
            "of context_tokens, those that vLLM's offloading loaded from the host before the pass",
            True,
        ),
        Column(
            "draft_tokens",
            I32,
            "of scheduled_tokens, those that speculative decoding guessed; null without it",
            True,
        ),
        Column(
            "accepted_tokens",
            I32,
            "of draft_tokens, those that the model would have given; the others leave the cache",
            True,
        ),
    ),
)

PREEMPTIONS = Table(
    "preemptions",
    "one preemption or one resumption",
    (
        _REPEAT,
        Column("step", I32, "pass whose scheduling preempted it, or that resumed it"),
        _REQUEST,
        Column("event", TEXT, "'preempt' or 'resume'"),
        Column(
            "time_s", F64, "when it lost its blocks, or the pass that resumed it began, " + _SINCE
        ),
        Column(
            "policy",
            TEXT,
            "the action, by name: 'swap', 'recompute' (also where the host pool had no room), …",
        ),
        Column("refused", BOOL, "the policy wanted to keep it, and the host pool had no room"),
        Column("blocks", I32, "blocks taken from it (preempt) or given to it (resume)"),
        Column(
            "shared_blocks",
            I32,
            "preempt only: of blocks, those that other running requests hold as well",
            True,
        ),
        Column("tokens", I32, "its tokens in the cache when preempted"),
        Column(
            "scheduled_tokens",
            I32,
            "preempt only: tokens that the pass was to compute of it, before it gave them back; "
            "`blocks` are for these, too",
            True,
        ),
        Column(
            "group_blocks",
            COUNTS,
            "preempt only: of blocks, those of each row of kv_groups; null where one group keeps "
            "all",
            True,
        ),
        Column("kv_bytes", I64, "preempt only: bytes of blocks without padding", True),
        Column("hit_tokens", I32, "resume only: tokens found in the prefix cache", True),
        Column(
            "own_hit_tokens",
            I32,
            "resume only: of these, those of blocks that the request had computed",
            True,
        ),
        Column("wait_s", F64, "resume only: seconds since it was preempted"),
        Column("recomputed_tokens", I32, "resume only: tokens computed before and again"),
        Column(
            "predicted_s",
            F64,
            "seconds that the policy expected its action to cost; null if it predicts nothing",
            True,
        ),
        Column(
            "cost_s",
            F64,
            "resume only: seconds that it cost: copies both ways, rebuilding, and of each pass "
            "that computed its tokens again, its part of the forward time by tokens",
            True,
        ),
        _SOURCE,
    ),
)

TRANSFERS = Table(
    "transfers",
    "one copy between the KV cache and the host",
    (
        _REPEAT,
        Column("step", I32, "pass that it was done for"),
        Column("request_id", TEXT, "request it belongs to; null if it is of several of the pass"),
        Column("direction", TEXT, "'out' of the KV cache to the host, or 'in'"),
        Column("kind", TEXT, "'kv' (K and V), or 'activations' (the inputs of attention)"),
        Column("blocks", I32, "blocks of the KV cache that it reads or fills"),
        Column("bytes", I64, "bytes copied"),
        Column("start_s", F64, "when it began on the host, " + _SINCE),
        Column("end_s", F64, "when it had ended (on a GPU: was launched), " + _SINCE),
        Column("copy_s", F64, "seconds of the copy itself, by `clock`"),
        Column("rebuild_s", F64, "seconds to rebuild K and V of activations; null if not rebuilt"),
        Column(
            "clock",
            TEXT,
            "'host', 'device' (a GPU's events), 'virtual', or 'log' (from a published one)",
        ),
        _SOURCE,
        Column("job", I64, "number of the job of vLLM's offloading; null of other copies", True),
        Column("ordered_s", F64, "of a job: when the scheduler ordered it, " + _SINCE, True),
        Column("first_block", I32, "of a job: place in its request of the first block", True),
        Column(
            "loaded_blocks",
            I32,
            "of a job that stores: those of its blocks that were loaded at least once",
            True,
        ),
        Column(
            "awaited_step",
            I32,
            "of a job that stores: pass that gave its blocks away, and so waited for its end",
            True,
        ),
        Column(
            "arrived_step",
            I32,
            "of a job that loads: pass whose scheduling learned of its end",
            True,
        ),
    ),
)

_CACHED_BLOCK = (
    Column("block", I32, "physical block of the KV cache"),
    Column("block_position", I32, "the block's place in either request, from 0"),
    Column("owner", TEXT, "request that computed the block"),
    Column("cached_step", I32, "pass that computed the block's last token"),
)

HITS = Table(
    "hits",
    "one block that a request found in the prefix cache when it was admitted or resumed",
    (
        _REPEAT,
        Column("step", I32, "pass that admitted or resumed it"),
        Column("request_id", TEXT, "request that found the block"),
        *_CACHED_BLOCK,
        Column("resumed", BOOL, "it was preempted, and has not run since"),
        Column("in_use", BOOL, "other running requests hold the block as well"),
    ),
)

EVICTIONS = Table(
    "evictions",
    "one block that left the prefix cache because a request needed its room",
    (
        _REPEAT,
        Column("step", I32, "pass that was being scheduled"),
        Column("request_id", TEXT, "request that needed the room"),
        *_CACHED_BLOCK,
        Column("age_s", F64, "seconds from the start of cached_step to that of step"),
        Column("hits", I32, "times that the block was found"),
    ),
)

KV_GROUPS = Table(
    "kv_groups",
    "one KV group: layers whose blocks are allocated together",
    (
        Column("kv_group", I32, "number of the group, from 0, as vLLM numbers it"),
        Column("kind", TEXT, "what is kept, by vLLM's name: 'FullAttention', 'SlidingWindow', …"),
        Column("layers", I32, "layers of the group"),
        Column("block_tokens", I32, "tokens of a block; a state is kept in one block"),
        Column("window_tokens", I32, "tokens of its window or chunk; null without one"),
        Column("useful_bytes", I64, "bytes of the contents of a block, over the group's layers"),
        Column("padded_bytes", I64, "the same with the padding of each layer"),
        Column("block_bytes", I64, "bytes that a block of any group takes of the cache"),
    ),
)

LAYERS = Table(
    "layers",
    "one transformer block of one forward pass",
    (
        _REPEAT,
        _STEP,
        Column("layer", I32, "transformer block, from 0"),
        Column("start_s", F64, "when its forward began on the host, " + _SINCE),
        Column("duration_s", F64, "host seconds in its forward (on a GPU: to launch it)"),
    ),
)

_ATTRIBUTION = (
    Column("repeat", I32, "repeat it belongs to; null outside the measured part"),
    Column("step", I32, "forward pass that launched it; null if none"),
    Column("layer", I32, "transformer block that launched it; null if none"),
)
_LAUNCH = (
    Column("correlation_id", I64, "ties it to the API call; unique per process only"),
    Column("pid", I64, "process that launched it"),
    Column("tid", I64, "thread that launched it; null without an API record"),
    Column("api_start_ns", I64, "start of the API call, " + _NSYS + "; null without a record"),
    Column("api_end_ns", I64, "end of the API call; null without a record"),
    *_ATTRIBUTION,
    Column("nvtx_id", I64, "innermost NVTX range of the launching thread (nvtx_ranges.id)"),
    Column("nvtx_path", TEXT, "names of the ranges around the launch, outermost first, '/'"),
)

NVTX_RANGES = Table(
    "nvtx_ranges",
    "one NVTX range",
    (
        Column("id", I64, "number of the range in this table"),
        Column("start_ns", I64, _NSYS),
        Column("end_ns", I64, _NSYS + "; the capture's end if it was never closed"),
        Column("name", TEXT, "the range's name"),
        Column("domain", TEXT, "NVTX domain; empty for the default one"),
        Column("kind", TEXT, "'push_pop' (nests on its thread) or 'start_end' (does not)"),
        Column("pid", I64, "process"),
        Column("tid", I64, "thread that opened it"),
        Column("payload", F64, "numeric payload; null if none"),
        Column("parent_id", I64, "the range it nests in; null for an outermost one"),
        Column("depth", I32, "0 for an outermost range"),
        Column("path", TEXT, "names from the outermost range to this one, joined by '/'"),
        *_ATTRIBUTION,
        Column("closed", BOOL, "false if the range was still open when the capture ended"),
    ),
)

GPU_KERNELS = Table(
    "gpu_kernels",
    "one kernel execution",
    (
        Column("start_ns", I64, _NSYS),
        Column("end_ns", I64, _NSYS),
        Column("device", I32, "GPU"),
        Column("context", I32, "CUDA context"),
        Column("stream", I32, "CUDA stream"),
        Column("name", TEXT, "demangled name"),
        Column("short_name", TEXT, "name without template and call arguments"),
        Column("grid", DIM3, "blocks in x, y, z"),
        Column("block_dim", DIM3, "threads of a block in x, y, z"),
        Column("graph_node_id", I64, "node of a CUDA graph; null outside graphs"),
        *_LAUNCH,
    ),
)

GPU_MEMCPYS = Table(
    "gpu_memcpys",
    "one copy done by a GPU",
    (
        Column("start_ns", I64, _NSYS),
        Column("end_ns", I64, _NSYS),
        Column("device", I32, "GPU"),
        Column("context", I32, "CUDA context"),
        Column("stream", I32, "CUDA stream"),
        Column("direction", TEXT, "'HtoD', 'DtoH', 'DtoD', 'PtoP', …, or CUPTI's number"),
        Column("source_memory", TEXT, "'pageable', 'pinned', 'device', …"),
        Column("destination_memory", TEXT, "as source_memory"),
        Column("bytes", I64, "bytes copied"),
        *_LAUNCH,
    ),
)

CUDA_API = Table(
    "cuda_api",
    "one call of the CUDA runtime or driver API",
    (
        Column("start_ns", I64, _NSYS),
        Column("end_ns", I64, _NSYS),
        Column("name", TEXT, "function, with CUPTI's version suffix"),
        Column("pid", I64, "process"),
        Column("tid", I64, "thread"),
        Column("correlation_id", I64, "ties it to GPU work; unique per process only"),
        Column("return_value", I64, "0 is success"),
    ),
)

TIMELINE = Table(
    "timeline",
    "one interval of anything that was recorded",
    (
        Column("start_ns", I64, "nanoseconds since the run's start, host monotonic clock"),
        Column("end_ns", I64, "as start_ns"),
        Column("source", TEXT, "'host', 'nvtx' or 'gpu': who measured it"),
        Column("kind", TEXT, "'repeat', 'step', 'layer', 'request', 'preemption', 'range', …"),
        Column("name", TEXT, "what it is called"),
        Column("track", TEXT, "where a viewer draws it"),
        *_ATTRIBUTION,
        Column("request_id", TEXT, "request it belongs to; null if none"),
    ),
)

KV_EVENTS = Table(
    "kv_events",
    "one access of an attention kernel to one block of the KV cache",
    (
        _REPEAT,
        _STEP,
        Column("layer", I32, "transformer block, from 0"),
        Column("request_id", TEXT, "request whose block it is; null if no request of the batch"),
        Column("phase", TEXT, "what the request did in this pass: 'prefill' or 'decode'"),
        Column("kind", TEXT, "'k_read', 'v_read', 'k_write' or 'v_write'"),
        Column("kv_head", I32, "KV head; null where one event stands for all heads"),
        Column("block", I32, "physical block of the KV cache"),
        Column("block_position", I32, "the block's place in the request, from 0"),
        Column("offset_tokens", I32, "first token slot touched, within the block"),
        Column("tokens", I32, "token slots touched, from there on"),
        Column("start_ns", I64, "nanoseconds since the run's start, host monotonic clock"),
        Column("end_ns", I64, "as start_ns"),
        Column(
            "worker",
            I32,
            "CPU thread that did it, or thread block of a GPU, by its place in the kernel",
        ),
        Column("sm", I32, "the GPU's streaming multiprocessor; null on a CPU"),
    ),
)

KV_KERNELS = Table(
    "kv_kernels",
    "one traced attention kernel: the write or the read of one layer of one forward pass",
    (
        _REPEAT,
        _STEP,
        Column("layer", I32, "transformer block, from 0"),
        Column("phase", TEXT, "phase of the pass: 'prefill', 'decode' or 'mixed'"),
        Column("kernel", TEXT, "'write' (of the new tokens' K and V) or 'attention' (reads them)"),
        Column("start_ns", I64, "nanoseconds since the run's start, host monotonic clock"),
        Column("end_ns", I64, "as start_ns"),
        Column("expected_events", I64, "events that the batch must cause, from its lengths alone"),
        Column("events", I64, "events recorded"),
        Column("dropped_events", I64, "events counted but not recorded: the buffer was full"),
        Column("residual_ns", I64, "farthest an event lies outside of the kernel; 0 if none does"),
    ),
)

METRICS = Table(
    "metrics",
    "one metric of one experiment",
    (
        Column("experiment_id", TEXT, "the experiment"),
        Column("metric", TEXT, "its name in docs/METRICS.md"),
        Column("value", F64, "point estimate over the repeats; null if not defined"),
        Column("ci_low", F64, "95 % confidence interval, lower end; null below two repeats"),
        Column("ci_high", F64, "95 % confidence interval, upper end"),
        Column("unit", TEXT, "unit of value"),
        Column("repeats_valid", I32, "repeats that entered the estimate"),
        Column("valid", BOOL, "whether the experiment is valid"),
        Column("reasons", TEXT, "names of the reasons why it is not, joined by ';'"),
        _SOURCE,
        Column("run_sha256", TEXT, "SHA-256 of the run.json they were computed from"),
    ),
)

REPEAT_METRICS = Table(
    "repeat_metrics",
    "one metric of one repeat that defines it; profiled repeats are left out",
    (
        Column("experiment_id", TEXT, "the experiment"),
        _REPEAT,
        Column("campaign", TEXT, "campaign that measured it; null outside of campaigns"),
        Column("round", I32, "the campaign's round, or sitting, from 0; null outside of campaigns"),
        Column("place", I32, "place of the repeat in its round, from 0; null outside of campaigns"),
        Column(
            "waiting",
            F64,
            "−log(1 − w), w the share of its time in which the engine was ready without a CPU; "
            "null if not known",
        ),
        Column("metric", TEXT, "its name in docs/METRICS.md"),
        Column("value", F64, "the metric of this repeat, as measured"),
        Column("unit", TEXT, "unit of value"),
        _SOURCE,
        Column("run_sha256", TEXT, "SHA-256 of the run.json it was computed from"),
    ),
)

COMPARISONS = Table(
    "comparisons",
    "one metric of two experiments of a study that differ in one key",
    (
        Column("base", TEXT, "the experiment that the other one is compared with"),
        Column("other", TEXT, "the other experiment"),
        Column("key", TEXT, "the key in which they differ"),
        Column("metric", TEXT, "its name in docs/METRICS.md"),
        Column("ratio", F64, "the metric of other / of base; null where one is not above 0"),
        Column("low", F64, "95 % confidence interval, lower end"),
        Column("high", F64, "95 % confidence interval, upper end; infinite if there is none"),
        Column("rounds", I32, "rounds that the interval is of; 0 where none connect the two"),
        Column("adjusted", BOOL, "whether times are adjusted for waiting"),
        Column(
            "how",
            TEXT,
            "'adjusted' or 'paired' over rounds, 'independent' without common rounds, 'modeled'; "
            "'rehearsed' of two such experiments; else null without a ratio",
        ),
        Column("difference", F64, "the metric of other − of base, in its unit"),
        Column("difference_low", F64, "95 % confidence interval, lower end; null if there is none"),
        Column(
            "difference_high", F64, "95 % confidence interval, upper end; null if there is none"
        ),
    ),
)

# Tables that a run records itself, and tables that `collect` and `analyse` write.
HOST_TABLES = (
    *(WORKLOAD, REQUESTS, STEPS, BATCH, PREEMPTIONS, TRANSFERS, HITS, EVICTIONS),
    *(KV_GROUPS, LAYERS),
)
OF_PREFIX_CACHE = (HITS, EVICTIONS)
OF_SOME_RUNS = (*OF_PREFIX_CACHE, KV_GROUPS, LAYERS)
"""Of these, those that a run may lack: without a prefix cache, of an earlier version or an engine
other than vLLM's, or without times of layers."""
NSYS_TABLES = (NVTX_RANGES, CUDA_API, GPU_KERNELS, GPU_MEMCPYS)
KV_TABLES = (KV_EVENTS, KV_KERNELS)
ANALYSIS_TABLES = (METRICS, REPEAT_METRICS)
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *(*HOST_TABLES, *KV_TABLES, *NSYS_TABLES, TIMELINE),
        *(*ANALYSIS_TABLES, COMPARISONS),
    )
}


def to_arrow(table: Table, frame: pd.DataFrame) -> pa.Table:
    """Convert a DataFrame to an Arrow table of this schema; ValueError for unknown columns."""
    extra = set(frame.columns) - set(table.names)
    if extra:
        raise ValueError(f"table {table.name} has no column {sorted(extra)}")
    frame = _with_optional(table, frame)
    for column in table.columns:
        if pa.types.is_list(column.type):  # pandas' NaN is no list
            values = frame[column.name].astype(object)
            frame = frame.assign(**{column.name: values.where(values.notna(), None)})
    return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)


def write(table: Table, frame: pd.DataFrame | pa.Table, path: Path) -> None:
    """Write a DataFrame or Arrow table as Parquet with the table's schema, atomically."""
    arrow = frame if isinstance(frame, pa.Table) else to_arrow(table, frame)
    with atomic_path(path) as temporary:
        pq.write_table(arrow.cast(table.schema), temporary, compression="zstd")


def read(table: Table, path: Path, columns: list[str] | None = None, **kwargs: Any) -> pd.DataFrame:
    """Read a Parquet file that must have the table's schema, or some columns of it.

    BadInput names the file if it is missing, damaged or of another schema.
    """
    complaint = check_file(table, path)
    if complaint:
        raise BadInput(complaint)
    with reading(path):
        rows = pq.read_table(path, columns=columns, **kwargs)
        rows.validate(full=True)  # texts are UTF-8, and so on
        frame: pd.DataFrame = rows.to_pandas(ignore_metadata=True)
    return frame if columns else _with_optional(table, frame)[table.names]


def _with_optional(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the table's optional columns, null where it lacks them."""
    lacking = [c.name for c in table.columns if c.optional and c.name not in frame]
    return frame.assign(**dict.fromkeys(lacking)) if lacking else frame


def check_file(table: Table, path: Path) -> str | None:
    """The problem with the schema of a table's file in one sentence; None if it is correct."""
    try:
        open_file(path).close()
        with reading(path), pq.ParquetFile(path) as file:
            found, rows, version = file.schema_arrow, file.metadata.num_rows, _version(file)
    except BadInput as error:
        return str(error)
    if version not in READABLE:
        known = " or ".join(READABLE)
        return f"{path}: schema version {version or 'absent'}, expected {known}"
    size = path.stat().st_size
    if rows > limits.FREE_ROWS + limits.MOST_ROWS_PER_BYTE * size:
        return f"{path}: {rows:,} rows in {size:,} bytes, more than a table has"
    for column in table.columns:
        times = found.names.count(column.name)
        if column.optional and not times:
            continue
        if times != 1:
            many = f"is there {times} times" if times else "is missing"
            return f"{path}: column '{column.name}' {many}"
        if found.field(column.name).type != column.type:
            return (
                f"{path}: column '{column.name}' has type {found.field(column.name).type}, "
                f"expected {column.type}"
            )
    return None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert the errors that Arrow raises for a damaged file to BadInput."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise BadInput(f"{path}: not a readable Parquet file ({one_line(error)})") from None


def _version(file: pq.ParquetFile) -> str:
    version: bytes = (file.schema_arrow.metadata or {}).get(b"kvscope.schema_version", b"")
    return version.decode()[:20]
