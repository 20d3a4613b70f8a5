"""The plan on disk: one manifest per study, one experiment.yaml per experiment.

A file is written only if its bytes change, so Snakemake reruns only experiments that changed. A
current manifest is read without Hydra and pydantic.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvscope
from kvscope.base.errors import BadInput
from kvscope.base.files import check_name, read_json, sha256_of, write_text, write_text_if_changed
from kvscope.base.layout import (
    AD_HOC,
    EXPERIMENT_FILE,
    MANIFEST,
    experiment_directory,
    study_directory,
)
from kvscope.plan import layers
from kvscope.plan.sources import is_unchanged, source_files

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment
    from kvscope.plan.grid import Plan

# The walltime of the previous manifest is kept unless the new one differs by more than this factor:
# each finished run changes the estimates slightly, which must not change the manifest.
STEADY = 1.5
TEXT_OR_NULL = (str, type(None))
GROUP_OR_NULL = (dict, type(None))
WORDS = {
    str: "text",
    int: "a whole number of at least 0",
    dict: "a group of keys",
    list: "a list",
    TEXT_OR_NULL: "text or null",
    GROUP_OR_NULL: "a group of keys or null",
}
# What a manifest holds: a type, several, or [of each item], or {of each key}, or {str: of any key}.
SHAPE: dict[str, Any] = {
    "study": str,
    "base": TEXT_OR_NULL,
    "title": str,
    "description": str,
    "compare": GROUP_OR_NULL,
    "varied_keys": [str],
    "figures": [{"name": str, "axes": [dict]}],
    "overrides": [str],
    "config_sha256": str,
    "files": [{"path": str, "sha256": str}],
    "pairs": {str: [[str]]},
    "experiments": [
        {
            "id": str,
            "label": str,
            "traits": dict,
            "grid": str,
            "varied": dict,
            "resources": {
                "threads": int,
                "memory_mib": int,
                "parked_mib": int,
                "gpus": int,
                "exclusive": int,
                "batch": int,
                "together": int,
                "walltime_s": int,
                "share_s": int,
            },
        }
    ],
}


def manifest_path(study: str, results: Path) -> Path:
    """results/studies/STUDY/manifest.json."""
    return study_directory(results, study) / MANIFEST


def experiment_path(experiment_id: str, results: Path) -> Path:
    """results/experiments/ID/experiment.yaml."""
    return experiment_directory(results, experiment_id) / EXPERIMENT_FILE


def split_study(words: list[str]) -> tuple[str | None, list[str]]:
    """Split `study=NAME` from the overrides; BadInput if it is given more than once."""
    names = [word.removeprefix("study=") for word in words if word.startswith("study=")]
    if len(names) > 1:
        raise BadInput(f"study is given {len(names)} times on the command line; give one")
    overrides = [word for word in words if not word.startswith("study=")]
    return (names[0] if names else None), overrides


def name_of(study: str | None, overrides: Sequence[str]) -> str:
    """The name of a plan's results directory.

    A study with overrides has a name of its own, with 8 hex digits of the overrides' SHA-256, so
    that it does not replace the study's page.
    """
    base = study or AD_HOC
    if not overrides:
        return base
    return f"{base}-{hashlib.sha256(json.dumps(sorted(overrides)).encode()).hexdigest()[:8]}"


def plan_if_changed(
    study: str | None, config_dir: Path, results: Path, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The manifest of a study with overrides; the study is planned only if its inputs changed.

    Inputs are the configuration and the workloads' files; a missing experiment.yaml also counts.
    `study` may be the name of a plan with overrides (`name_of`); None plans the overrides alone.
    BadInput if it cannot be planned.
    """
    path = manifest_path(name_of(study, overrides), results)
    if manifest := _read_if_sound(path.parent.name, results):
        study, overrides = manifest["base"], manifest["overrides"]
        if _is_current(manifest, config_sha256(study, config_dir), results):
            return manifest
    from kvscope.plan.grid import expand  # takes half a second; not needed above

    write(expand(study, list(overrides), config_dir), results)
    return read(path.parent.name, results)


def preview(
    study: str | None, config_dir: Path, results: Path, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The manifest that `plan_if_changed` would give; nothing is written."""
    before = _read_if_sound(name_of(study, overrides), results)
    if before:
        study, overrides = before["base"], before["overrides"]
    from kvscope.plan.grid import expand  # takes half a second

    plan = expand(study, list(overrides), config_dir)
    return contents(plan, resources_of(plan, results))


def _read_if_sound(study: str, results: Path) -> dict[str, Any] | None:
    """A study's manifest; None if it is missing, damaged, or of another version."""
    try:
        return read(study, results)
    except BadInput:
        return None


def _is_current(manifest: dict[str, Any], sha256: str, results: Path) -> bool:
    ids = (entry["id"] for entry in manifest["experiments"])
    return (
        manifest["config_sha256"] == sha256
        and all(experiment_path(i, results).exists() for i in ids)
        and all(is_unchanged(file["path"], file["sha256"]) for file in manifest["files"])
    )


def read(study: str, results: Path) -> dict[str, Any]:
    """Read a study's manifest; BadInput names file, key and value if it is missing or damaged."""
    path = manifest_path(study, results)
    manifest: dict[str, Any] = read_json(path)
    _check(manifest, SHAPE, f"{path}: manifest")
    if not (study == manifest["study"] == name_of(manifest["base"], manifest["overrides"])):
        raise BadInput(f"{path}: is of study {manifest['study']!r:.60}; plan the study again")
    for number, entry in enumerate(manifest["experiments"]):
        check_name(entry["id"], f"{path}: manifest.experiments.{number}.id")
    return manifest


def _check(value: Any, shape: Any, place: str) -> None:
    """Raise BadInput unless `value` conforms to `shape` (see SHAPE)."""
    kind: Any = type(shape) if isinstance(shape, dict | list) else shape
    negative = isinstance(value, int) and value < 0
    if not isinstance(value, kind) or isinstance(value, bool) or negative:
        raise BadInput(f"{place} is {value!r:.60} but must be {WORDS[kind]}; plan the study again")
    if isinstance(shape, list):
        for number, item in enumerate(value):
            _check(item, shape[0], f"{place}.{number}")
    if isinstance(shape, dict):
        for key, inner in ({key: shape[str] for key in value} if str in shape else shape).items():
            if key not in value:
                raise BadInput(f"{place} lacks the key {key!r}; plan the study again")
            _check(value[key], inner, f"{place}.{key}")


def write(plan: "Plan", results: Path) -> Path:
    """Write a plan's experiments and manifest below `results`; returns the manifest's path.

    BadInput if a workload's file cannot be used.
    """
    experiments = [planned.experiment for planned in plan.experiments]
    manifest = contents(plan, resources_of(plan, results))
    for experiment in experiments:
        _write_experiment(experiment, experiment_path(experiment.id, results))
    path = manifest_path(manifest["study"], results)
    write_text_if_changed(path, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return path


def contents(plan: "Plan", needs: dict[str, dict[str, int]]) -> dict[str, Any]:
    """The manifest of a plan, with these resources of each experiment's run by id."""
    from kvscope.plan.pairs import as_json

    experiments = [planned.experiment for planned in plan.experiments]
    return {
        "study": name_of(plan.study, plan.overrides),
        "base": plan.study,
        "title": plan.title,
        "description": plan.description,
        "compare": plan.question and plan.question.model_dump(),
        "levels": [
            {"key": key, "value": value, "name": words}
            for key, names in plan.levels.items()
            for value, words in names.items()
        ],
        "varied_keys": list(plan.varied_keys),
        "figures": [
            {"name": name, "axes": [row.model_dump(exclude_defaults=True) for row in axes]}
            for name, axes in plan.figures.items()
        ],
        "overrides": list(plan.overrides),
        "config_sha256": config_sha256(plan.study, plan.config_dir),
        "files": _files(experiments),
        "pairs": {key: [[*pair] for pair in pairs] for key, pairs in plan.compared.pairs.items()},
        "experiments": [
            {
                "id": planned.experiment.id,
                "label": planned.label,
                "traits": as_json(plan.compared.traits[planned.experiment.id]),
                "grid": planned.grid,
                "varied": planned.varied,
                "resources": needs[planned.experiment.id],
            }
            for planned in plan.experiments
        ],
    }


def _write_experiment(experiment: "Experiment", path: Path) -> None:
    """Write an experiment.yaml, unless a complete run of the experiment records the present file.

    The bytes of one experiment can differ: the path of a workload's file is not part of its id.
    """
    from kvscope.plan.experiment import dump

    text = dump(experiment)
    changed = not path.is_file() or path.read_bytes() != text.encode()
    if changed and not _is_recorded(experiment.id, path):
        write_text(path, text)


def _is_recorded(experiment_id: str, path: Path) -> bool:
    """Whether a complete run of the experiment records its experiment.yaml as it is."""
    from kvscope.plan.experiment import load
    from kvscope.tables.runfile import is_complete

    try:
        return is_complete(path.parent, experiment_id) and load(path).id == experiment_id
    except BadInput:
        return False


def resources_of(plan: "Plan", results: Path) -> dict[str, dict[str, int]]:
    """The resources of each experiment's run by id: `resources.resources`, and more.

    BadInput if a workload's file cannot be used.
    """
    from kvscope.plan.pairs import connected
    from kvscope.plan.resources import resources
    from kvscope.plan.walltime import walltimes_s

    experiments = [planned.experiment for planned in plan.experiments]
    by_id = {experiment.id: experiment for experiment in experiments}
    before = _read_if_sound(name_of(plan.study, plan.overrides), results)
    entries = before["experiments"] if before else []
    earlier = {entry["id"]: entry["resources"] for entry in entries}
    measured = [experiment for experiment in experiments if experiment.device.allocates]
    together = {i: number for number, ids in enumerate(connected(measured)) for i in ids}
    needs = {}
    for i, expected in walltimes_s(experiments, results).items():
        before_s = earlier.get(i, {})
        steady = {key: _steady(now, before_s.get(key, 0)) for key, now in expected.items()}
        # experiments of one number are compared, so one process measures them
        needs[i] = resources(by_id[i]) | steady | {"together": together.get(i, 0)}
    return needs


def _steady(now_s: int, before_s: int) -> int:
    """An estimate that changes only if it changes much."""
    return before_s if now_s / STEADY <= before_s <= now_s * STEADY else now_s


def device_note(needs: Iterable[Mapping[str, int]], environment: str) -> str | None:
    """A note that experiments leave a GPU unused, for which the environment was made.

    `needs` has the resources of each experiment's run, `environment` is the device that
    `make env DEVICE=…` installs for.
    """
    on_cpu = sum(not need["gpus"] and not need["batch"] for need in needs)
    if environment != "cuda" or not on_cpu:
        return None
    return (
        f"this environment is made for a GPU, but {on_cpu} of the experiments run on the CPU: "
        'device=cuda measures on the GPU (with snakemake: --config overrides="device=cuda")'
    )


def _files(experiments: Iterable["Experiment"]) -> list[dict[str, str]]:
    """The files of all workloads, each once."""
    files = dict.fromkeys(file for e in experiments for file in source_files(e.workload))
    return [{"path": path, "sha256": sha256} for _, path, sha256 in files]


def config_sha256(study: str | None, config_dir: Path) -> str:
    """SHA-256 over the inputs of a plan: the study's file, all option files, kvscope's version."""
    digest = hashlib.sha256(kvscope.__version__.encode())
    for name, path in layers.files(config_dir).items():
        if not name.startswith("study/") or name == f"study/{study}.yaml":
            digest.update(f"\n{name} {sha256_of(path)}".encode())
    return digest.hexdigest()
