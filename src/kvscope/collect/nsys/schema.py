"""Schema of an Nsight Systems SQLite export: tables, columns, codes, and their bounds.

Exports of schema 2.9 (2022) to 3.25 (2026) differ in the tables they have (one without rows is
left out), in the columns of a table (new ones appear in the middle) and in the name of the
metadata table. Columns are read by name, and one that a version lacks reads as null. What another
version changes is changed here.
"""

from kvscope.base import limits
from kvscope.base.arraytypes import Int64s

KNOWN_MAJOR_VERSIONS = ("2", "3")

METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # from 3.4, up to 3.1
STRINGS = "StringIds"
RANGES = "NVTX_EVENTS"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"  # of the CUDA runtime and of the driver
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPYS = "CUPTI_ACTIVITY_KIND_MEMCPY"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"  # launches that were traced whole
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
SESSION_START = ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
CAPTURE_LENGTH = ("ANALYSIS_DETAILS", "duration")
TRACED = ("META_DATA_CAPTURE", "CAPTURE_EVENT_TYPE")  # whose value is one of the next two
TRACES_CUDA, TRACES_NVTX = "Cuda", "NvtxEvents"
GPUS = "TARGET_INFO_GPU"
READ = (
    *(*METADATA, STRINGS, RANGES, CALLS, KERNELS, MEMCPYS, GRAPHS, DIAGNOSTICS),
    *(SESSION_START[0], CAPTURE_LENGTH[0], TRACED[0], GPUS),
)

# Columns of whole numbers; and those that name ranges, kernels and calls by the id of a string.
RANGE_COLUMNS = ("start", "end", "eventType", "globalTid", "domainId", "textId")
WHOLE_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
FRACTION_PAYLOADS = ("doubleValue", "floatValue")
CALL_COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
_GPU_COLUMNS = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
KERNEL_COLUMNS = (
    *_GPU_COLUMNS,
    *("demangledName", "shortName", "graphNodeId"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
)
MEMCPY_COLUMNS = (*_GPU_COLUMNS, "bytes", "copyKind", "srcKind", "dstKind")
NAMES = {
    RANGES: ("textId",),
    KERNELS: ("demangledName", "shortName", "mangledName"),
    CALLS: ("nameId",),
}
BOUNDS = {
    **dict.fromkeys(("start", "end"), limits.TIMES_NS),
    **dict.fromkeys(("deviceId", "contextId", "streamId"), limits.INT32),
    **dict.fromkeys((f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ"), limits.INT32),
}

# Event types: push/pop ranges nest on their thread, start/end ranges do not.
PUSH_POP = (59, 70)  # NvtxPushPopRange, NvtxtPushPopRange
START_END = (60, 71)  # NvtxStartEndRange, NvtxtStartEndRange
DOMAIN_CREATE, DOMAIN_DESTROY = 75, 76

SEVERE = {2: "warning", 3: "error"}  # of ENUM_DIAGNOSTIC_SEVERITY_LEVEL

# CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind as Nsight Systems numbers them
# (ENUM_CUDA_MEMCPY_OPER, ENUM_CUDA_MEM_KIND, the same from 2022 to 2026).
DIRECTIONS = (
    *("unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"),
    *("unified HtoD", "unified DtoH", "unified DtoD"),
)
MEMORIES = (
    *("pageable", "pinned", "device", "array", "managed"),
    *("device static", "managed static", "unknown"),
)


def pid_of(global_id: Int64s) -> Int64s:
    """The process in a globalTid or globalPid: vm << 48 | pid << 24 | tid."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_id: Int64s) -> Int64s:
    """The thread in a globalTid."""
    return global_id & 0xFFFFFF
