"""The plan on disk: one manifest a study, one experiment.yaml an experiment.

A file is written only if its bytes change, so that nothing is run again whose meaning stayed.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvscope
from kvscope.errors import BadInput
from kvscope.files import read_json, write_text_if_changed
from kvscope.plan import layers

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment
    from kvscope.plan.grid import Plan, Planned

KEYS = (
    *("study", "base", "title", "description", "varied_keys", "figures", "overrides"),
    *("config_sha256", "experiments"),
)
AD_HOC = "adhoc"  # the plan of the command line alone
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


def name_of(study: str | None, overrides: Sequence[str]) -> str:
    """The name under which a plan's results lie.

    A study with overrides is another study: its name ends in 8 hex digits of their SHA-256, so that
    both keep their pages.
    """
    base = study or AD_HOC
    if not overrides:
        return base
    return f"{base}-{hashlib.sha256(json.dumps(sorted(overrides)).encode()).hexdigest()[:8]}"


def ensure(
    study: str | None, config_dir: Path, results: Path, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The manifest of a study with overrides, expanded again only if that may change it.

    It is, if the configuration changed or a file is gone. `study` may name a plan that was written
    with overrides (`name_of`); None is the plan of the overrides alone. Raises BadInput if it
    cannot be planned.
    """
    path = manifest_path(name_of(study, overrides), results)
    if manifest := _read_if_sound(path.parent.name, results):
        study, overrides = manifest["base"], manifest["overrides"]
        if _current(manifest, config_sha256(study, config_dir), results):
            return manifest
    from kvscope.plan.grid import expand  # half a second that the path above does without

    write(expand(study, list(overrides), config_dir), results)
    return read(path.parent.name, results)


def _read_if_sound(study: str, results: Path) -> dict[str, Any] | None:
    """A study's manifest; None if there is none, or one of another version, or a damaged one."""
    try:
        return read(study, results)
    except BadInput:
        return None


def _current(manifest: dict[str, Any], sha256: str, results: Path) -> bool:
    ids = (entry["id"] for entry in manifest["experiments"])
    return manifest["config_sha256"] == sha256 and all(
        experiment_path(i, results).exists() for i in ids
    )


def read(study: str, results: Path) -> dict[str, Any]:
    """Read a study's manifest; BadInput names the file if it is absent or damaged."""
    path = manifest_path(study, results)
    manifest: dict[str, Any] = read_json(path)
    for key in KEYS:
        if key not in manifest:
            raise BadInput(f"{path}: key {key} is missing; plan the study again")
    return manifest


def write(plan: "Plan", results: Path) -> Path:
    """Write a plan's experiments and manifest below `results`; give the manifest's path."""
    from kvscope.plan.experiment import dump

    for planned in plan.experiments:
        path = experiment_path(planned.experiment.id, results)
        write_text_if_changed(path, dump(planned.experiment))
    name = name_of(plan.study, plan.overrides)
    manifest = {
        "study": name,
        "base": plan.study,
        "title": plan.title,
        "description": plan.description,
        "varied_keys": list(plan.varied_keys),
        "figures": list(plan.figures),
        "overrides": list(plan.overrides),
        "config_sha256": config_sha256(plan.study, plan.config_dir),
        "experiments": [_entry(planned) for planned in plan.experiments],
    }
    path = manifest_path(name, results)
    write_text_if_changed(path, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return path


def config_sha256(study: str | None, config_dir: Path) -> str:
    """SHA-256 over what a plan is made of: the study's file, all option files, the version."""
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
