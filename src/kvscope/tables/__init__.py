"""The tables of a run and of a study: names, types, units, meaning and roles of their columns.

The tables of `docs/TRACE_SPEC.md` are generated from this package. A column keeps its name, unit
and meaning; a change that breaks a reader increments SCHEMA_VERSION.
"""

from kvscope.tables.column import BOOL, SCHEMA_VERSION, TEXT, Column, Table
from kvscope.tables.events import KV_EVENTS, KV_KERNELS, TIMELINE
from kvscope.tables.files import READABLE, check_file, read, reading, to_arrow, write, write_parts
from kvscope.tables.memory import EVICTIONS, HITS, KV_GROUPS, TRANSFERS
from kvscope.tables.metrics import COMPARISONS, METRICS, REPEAT_METRICS
from kvscope.tables.passes import BATCH, LAYERS, PREEMPTIONS, STEPS
from kvscope.tables.profile import CUDA_API, GPU_KERNELS, GPU_MEMCPYS, NVTX_RANGES
from kvscope.tables.requests import REQUESTS, WORKLOAD

__all__ = [
    "ANALYSIS_TABLES",
    "BATCH",
    "BOOL",
    "COMPARISONS",
    "CUDA_API",
    "EVICTIONS",
    "GPU_KERNELS",
    "GPU_MEMCPYS",
    "HITS",
    "HOST_TABLES",
    "KV_EVENTS",
    "KV_GROUPS",
    "KV_KERNELS",
    "KV_TABLES",
    "LAYERS",
    "METRICS",
    "NSYS_TABLES",
    "NVTX_RANGES",
    "OF_PREFIX_CACHE",
    "OF_SOME_RUNS",
    "PREEMPTIONS",
    "READABLE",
    "REPEAT_METRICS",
    "REQUESTS",
    "SCHEMA_VERSION",
    "STEPS",
    "TABLES",
    "TEXT",
    "TIMELINE",
    "TRANSFERS",
    "WORKLOAD",
    "Column",
    "Table",
    "check_file",
    "read",
    "reading",
    "to_arrow",
    "write",
    "write_parts",
]

# Tables that a run records itself, and tables that `collect` and `analyse` write.
HOST_TABLES = (
    *(WORKLOAD, REQUESTS, STEPS, BATCH, PREEMPTIONS, TRANSFERS, HITS, EVICTIONS),
    *(KV_GROUPS, LAYERS),
)
OF_PREFIX_CACHE = (HITS, EVICTIONS)
OF_SOME_RUNS = (*OF_PREFIX_CACHE, KV_GROUPS, LAYERS)
"""Tables among these that a run may lack: without a prefix cache, of an earlier version or an
engine other than vLLM's, or without times of layers.
"""
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
