"""The tables of a capture of Nsight Systems."""

from kvscope.tables.column import BOOL, DIM3, F64, I32, I64, TEXT, Table, derived, key, told
from kvscope.tables.columns import ATTRIBUTION

_NSYS = "nanoseconds since the capture's start, Nsight Systems' clock"

_LAUNCH = (
    told("correlation_id", I64, "ties it to the API call; unique per process only"),
    told("pid", I64, "process that launched it"),
    told("tid", I64, "thread that launched it; null without an API record"),
    told("api_start_ns", I64, "start of the API call, " + _NSYS + "; null without a record"),
    told("api_end_ns", I64, "end of the API call; null without a record"),
    *ATTRIBUTION,
    derived("nvtx_id", I64, "innermost NVTX range of the launching thread (nvtx_ranges.id)"),
    derived("nvtx_path", TEXT, "names of the ranges around the launch, outermost first, '/'"),
)

NVTX_RANGES = Table(
    "nvtx_ranges",
    "one NVTX range",
    (
        key("id", I64, "number of the range in this table"),
        told("start_ns", I64, _NSYS),
        told("end_ns", I64, _NSYS + "; the capture's end if it was never closed"),
        told("name", TEXT, "the range's name"),
        told("domain", TEXT, "NVTX domain; empty for the default one"),
        told("kind", TEXT, "'push_pop' (nests on its thread) or 'start_end' (does not)"),
        told("pid", I64, "process"),
        told("tid", I64, "thread that opened it"),
        told("payload", F64, "numeric payload; null if none"),
        derived("parent_id", I64, "the range it nests in; null for an outermost one"),
        derived("depth", I32, "0 for an outermost range"),
        derived("path", TEXT, "names from the outermost range to this one, joined by '/'"),
        *ATTRIBUTION,
        told("closed", BOOL, "false if the range was still open when the capture ended"),
    ),
)

GPU_KERNELS = Table(
    "gpu_kernels",
    "one kernel execution",
    (
        told("start_ns", I64, _NSYS),
        told("end_ns", I64, _NSYS),
        told("device", I32, "GPU"),
        told("context", I32, "CUDA context"),
        told("stream", I32, "CUDA stream"),
        told("name", TEXT, "demangled name"),
        derived("short_name", TEXT, "name without template and call arguments"),
        told("grid", DIM3, "blocks in x, y, z"),
        told("block_dim", DIM3, "threads of a block in x, y, z"),
        told("graph_node_id", I64, "node of a CUDA graph; null outside graphs"),
        *_LAUNCH,
    ),
)

GPU_MEMCPYS = Table(
    "gpu_memcpys",
    "one copy done by a GPU",
    (
        told("start_ns", I64, _NSYS),
        told("end_ns", I64, _NSYS),
        told("device", I32, "GPU"),
        told("context", I32, "CUDA context"),
        told("stream", I32, "CUDA stream"),
        told("direction", TEXT, "'HtoD', 'DtoH', 'DtoD', 'PtoP', …, or CUPTI's number"),
        told("source_memory", TEXT, "'pageable', 'pinned', 'device', …"),
        told("destination_memory", TEXT, "as source_memory"),
        told("bytes", I64, "bytes copied"),
        *_LAUNCH,
    ),
)

CUDA_API = Table(
    "cuda_api",
    "one call of the CUDA runtime or driver API",
    (
        told("start_ns", I64, _NSYS),
        told("end_ns", I64, _NSYS),
        told("name", TEXT, "function, with CUPTI's version suffix"),
        told("pid", I64, "process"),
        told("tid", I64, "thread"),
        told("correlation_id", I64, "ties it to GPU work; unique per process only"),
        told("return_value", I64, "0 is success"),
    ),
)
