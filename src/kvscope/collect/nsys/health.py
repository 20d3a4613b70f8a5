"""Warnings about an incomplete export: lost events, CUDA graphs, domains without ranges."""

from kvscope.base import limits
from kvscope.base.ranges import DOMAIN
from kvscope.collect.nsys import schema
from kvscope.collect.nsys.export import NsysExport
from kvscope.collect.nsys.nvtx import domain_names


def warnings(export: NsysExport, silent: list[str]) -> list[str]:
    """The reasons why the export may be incomplete, one sentence each; it has `silent` domains."""
    return [
        *_version(export),
        *_graph_launches(export),
        *_silent_nvtx(export, silent),
        *_truncated_texts(export),
    ]


def silent_domains(export: NsysExport) -> list[str]:
    """Names of NVTX domains that were created but in which no range or mark was recorded."""
    if schema.RANGES not in export.tables:
        return []
    used = set(
        export.rows(
            f"SELECT DISTINCT globalTid >> 24, domainId FROM {_ranges(export)} "
            f"WHERE eventType NOT IN ({schema.DOMAIN_CREATE}, {schema.DOMAIN_DESTROY})"
        )
    )
    return sorted({name for key, name in domain_names(export).items() if key not in used})


def _ranges(export: NsysExport) -> str:
    return export.source(schema.RANGES, ("globalTid", "domainId", "eventType"))


def _version(export: NsysExport) -> list[str]:
    version = export.metadata.get("EXPORT_SCHEMA_VERSION")
    if version and version.split(".")[0] not in schema.KNOWN_MAJOR_VERSIONS:
        return [f"Export schema {version} is of a major version that kvscope does not know."]
    return []


def _graph_launches(export: NsysExport) -> list[str]:
    if not (graphs := export.count(schema.GRAPHS)):
        return []
    return [
        f"{graphs} launches of CUDA graphs were traced whole, so that their kernels are not among "
        f"the {export.count(schema.KERNELS)} kernels here; profile with --cuda-graph-trace=node."
    ]


def _silent_nvtx(export: NsysExport, silent: list[str]) -> list[str]:
    if schema.RANGES not in export.tables:
        return []
    kinds = {kind for (kind,) in export.rows(f"SELECT DISTINCT eventType FROM {_ranges(export)}")}
    if kinds and kinds <= {schema.DOMAIN_CREATE, schema.DOMAIN_DESTROY}:
        return [
            "NVTX domains were created but no range was recorded: the nvtx package is too new "
            "for this version of Nsight Systems (0.2.11 works with all)."
        ]
    if DOMAIN in silent:
        return [f"The NVTX domain '{DOMAIN}' was created but no range was recorded in it."]
    return []


def _truncated_texts(export: NsysExport) -> list[str]:
    if not export.texts_cut:
        return []
    return [
        f"{export.texts_cut:,} texts of the export are longer than {limits.LONGEST_NAME:,} "
        "characters; where they are names, these are cut."
    ]
