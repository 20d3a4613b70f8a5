"""The provenance of a run: versions, hardware, source commit, origins of options and tables."""

import os
import platform
from collections.abc import Container
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import kvscope
from kvscope.base import plugins, processes
from kvscope.base.machine import installed_vllm, load_1min, memory_bytes, processor
from kvscope.plan import registry
from kvscope.plan.experiment import Experiment
from kvscope.tables.added import GROUP, added_tables

PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "nvtx",
    "snakemake",
    "hydra-core",
)
SECONDS_FOR_GIT = 10
COMMIT = r"[\w./+-]*\d[\w./+-]*"


@cache
def versions() -> dict[str, str | None]:
    """Version of kvscope, Python, vLLM and the packages a result may depend on."""
    versions_: dict[str, str | None] = {
        "kvscope": kvscope.__version__,
        "kvscope_commit": source_commit(),
        "python": platform.python_version(),
    }
    versions_["vllm"] = " ".join(installed_vllm() or ()) or None
    return versions_ | {name: _version(name) for name in PACKAGES}


def option_origins(experiment: Experiment) -> dict[str, str]:
    """Package, version and class of the device, workload and policies that are not kvscope's."""
    origins = {
        kind: registry.package_origin(kind, getattr(experiment, kind).name)
        for kind in registry.KINDS
    }
    return {kind: text for kind, text in origins.items() if text}


def table_origins(files: Container[str]) -> dict[str, str | None]:
    """Package, version and object of each table of another package among a run's files, by file."""
    added = {name: added_.table.file for name, added_ in added_tables().items()}
    return {file: plugins.origin(GROUP, name) for name, file in added.items() if file in files}


def _version(distribution: str) -> str | None:
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """Commit of the checkout kvscope runs from, '-dirty' if changed; None outside a checkout."""
    checkout = Path(kvscope.__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", checkout, "describe", "--always", "--dirty", "--abbrev=12"]
    line, _ = processes.version_of(command, COMMIT, SECONDS_FOR_GIT)
    return line or None  # without git, the version is all that is known


def hardware() -> dict[str, Any]:
    """The machine: processor, cores, memory, operating system, name and load."""
    return {
        "hostname": platform.node(),
        "cpu": processor().get("model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "os": platform.platform(),
        "load_1min": load_1min(),
    }
