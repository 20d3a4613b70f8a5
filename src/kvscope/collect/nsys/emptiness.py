"""Why tables of an export are empty, in one sentence."""

from collections.abc import Mapping

from kvscope.base.quantities import join_words
from kvscope.collect.nsys import schema
from kvscope.collect.nsys.export import NsysExport
from kvscope.tables import CUDA_API, GPU_KERNELS, GPU_MEMCPYS, NVTX_RANGES

CUDA_TABLES = (CUDA_API.name, GPU_KERNELS.name, GPU_MEMCPYS.name)
PROFILE = "profile with --trace=cuda,nvtx"
ON_A_GPU = "on a machine with an NVIDIA GPU"
RUN_CUDA = f"run with device=cuda {ON_A_GPU}"
RECORD_CUDA = f"record {ON_A_GPU}"


def empty_tables(
    export: NsysExport, rows: Mapping[str, int], cuda_by: str | None = None
) -> list[str]:
    """A sentence on the tables without `rows` and why they are empty; no sentence if all have rows.

    `cuda_by` says what traces CUDA, where that is not an option of nsys.
    """
    cuda = [name for name in CUDA_TABLES if not rows[name]]
    parts = []
    if not rows[NVTX_RANGES.name]:
        parts.append(_part([NVTX_RANGES.name], _why_no_ranges(export)))
    if len(cuda) == len(CUDA_TABLES):
        parts.append(_part(cuda, _why_no_cuda(export, cuda_by)))
    elif cuda:
        parts.append(_part(cuda, "CUDA was traced, and nothing of that kind was in the capture"))
    sentence = "; ".join(parts)
    return [f"{sentence[0].upper()}{sentence[1:]}."] if parts else []


def _part(names: list[str], why: str) -> str:
    """'tables cuda_api and gpu_kernels are empty: why'."""
    which = f"table {names[0]} is" if len(names) == 1 else f"tables {join_words(names)} are"
    return f"{which} empty: {why}"


def _why_no_ranges(export: NsysExport) -> str:
    if schema.RANGES in export.tables and export.count(schema.RANGES):
        return "there are NVTX events, and no range or mark among them"
    traced = _traced(export)
    if traced is None:
        return f"no NVTX range was captured ({PROFILE} a program that pushes some)"
    if schema.TRACES_NVTX not in traced:
        return f"NVTX was not traced ({PROFILE})"
    return "NVTX was traced, and the program pushed no range while it was"


def _why_no_cuda(export: NsysExport, cuda_by: str | None) -> str:
    if export.count(schema.GRAPHS):
        return "CUDA graphs were traced whole, without their kernels and calls"
    traced, gpu = _traced(export), export.count(schema.GPUS) > 0
    remedy = cuda_by or (PROFILE if gpu else f"{PROFILE} {ON_A_GPU}")
    if traced is None:
        return f"no CUDA was captured ({remedy})"
    if schema.TRACES_CUDA not in traced:
        return f"CUDA was not traced ({remedy})"
    if not gpu:
        return f"CUDA was traced, but nsys lists no GPU of the machine ({remedy})"
    return "CUDA was traced, and the program used none of it while it was"


def _traced(export: NsysExport) -> set[str] | None:
    """The kinds of events that the capture was asked for; None if the export does not say."""
    table, name = schema.TRACED
    if not export.columns(table).keys() >= {"name", "value"}:
        return None
    source = export.source(table, ("name", "value"))
    kinds = {kind for (kind,) in export.rows(f"SELECT value FROM {source} WHERE name = '{name}'")}
    return kinds or None
