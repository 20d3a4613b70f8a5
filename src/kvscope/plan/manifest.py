"""The plan on disk: one manifest a study, one experiment.yaml an experiment.

A file is written only if its bytes change, so that nothing is run again whose meaning stayed.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvscope
from kvscope.files import read_json, write_text_if_changed
from kvscope.plan import layers

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment
    from kvscope.plan.grid import Plan, Planned

MIB = 2**20
# Memory of the engine's process beside weights and cache: Python, PyTorch and vLLM. Rounded up
# generously: it is asked of a batch system, which kills what exceeds it.
BASE_MIB = 4096


def manifest_path(study: str, results: Path) -> Path:
    """results/studies/STUDY/manifest.json."""
    return results / "studies" / study / "manifest.json"


def experiment_path(experiment_id: str, results: Path) -> Path:
    """results/experiments/ID/experiment.yaml."""
    return results / "experiments" / experiment_id / "experiment.yaml"


def ensure(study: str, config_dir: Path, results: Path) -> dict[str, Any]:
    """The study's manifest, expanded again only if that may change it.

    It is, if the configuration changed, a file is gone, or the manifest was written with
    overrides on the command line. Raises BadInput if the study cannot be planned.
    """
    if manifest_path(study, results).exists():
        manifest = read(study, results)
        if _current(manifest, config_sha256(study, config_dir), results):
            return manifest
    from kvscope.plan.grid import expand  # half a second that the path above does without

    write(expand(study, [], config_dir), results)
    return read(study, results)


def _current(manifest: dict[str, Any], sha256: str, results: Path) -> bool:
    ids = (entry["id"] for entry in manifest["experiments"])
    return (
        manifest["config_sha256"] == sha256
        and not manifest["overrides"]
        and all(experiment_path(i, results).exists() for i in ids)
    )


def read(study: str, results: Path) -> dict[str, Any]:
    """Read a study's manifest; BadInput names the file if it is absent or damaged."""
    manifest: dict[str, Any] = read_json(manifest_path(study, results))
    return manifest


def write(plan: "Plan", results: Path) -> Path:
    """Write a plan's experiments and manifest below `results`; give the manifest's path."""
    from kvscope.plan.experiment import dump

    for planned in plan.experiments:
        path = experiment_path(planned.experiment.id, results)
        write_text_if_changed(path, dump(planned.experiment))
    manifest = {
        "study": plan.study,
        "title": plan.title,
        "description": plan.description,
        "varied_keys": list(plan.varied_keys),
        "figures": list(plan.figures),
        "overrides": list(plan.overrides),
        "config_sha256": config_sha256(plan.study, plan.config_dir),
        "experiments": [_entry(planned) for planned in plan.experiments],
    }
    path = manifest_path(plan.study, results)
    write_text_if_changed(path, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return path


def config_sha256(study: str, config_dir: Path) -> str:
    """SHA-256 over what a study's plan is made of: its file, all option files, the version."""
    digest = hashlib.sha256(kvscope.__version__.encode())
    for name, path in layers.files(config_dir).items():
        if not name.startswith("study/") or name == f"study/{study}.yaml":
            content = path.read_bytes()
            digest.update(f"\n{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def resources(experiment: "Experiment") -> dict[str, int]:
    """What a batch system must give one run: CPU threads, MiB of host memory, GPUs."""
    weights = experiment.model.weight_bytes
    blocks = experiment.host_blocks
    if experiment.device.name == "cuda":
        needed, gpus = weights, 1
    else:  # weights twice: as loaded, and as packed for the CPU's matrix product
        needed, gpus = 2 * weights, 0
        blocks += experiment.cache_blocks
    needed += blocks * experiment.block_bytes
    memory = BASE_MIB + -(-needed // MIB)
    return {"threads": experiment.device.threads, "memory_mib": memory, "gpus": gpus}


def _entry(planned: "Planned") -> dict[str, Any]:
    return {
        "id": planned.experiment.id,
        "label": planned.label,
        "varied": planned.varied,
        "resources": resources(planned.experiment),
    }
