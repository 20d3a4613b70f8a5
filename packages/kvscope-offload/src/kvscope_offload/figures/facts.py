"""Entries of run.json of the offload engine, as its figures need them."""

from collections.abc import Sequence
from typing import Any

from kvscope.api.figures import Axes
from kvscope.api.sections import ReportedRun, StudyData

ABLATIONS = ("buffers", "spread_weights", "balanced")


def offload_runs(study: StudyData, axes: Sequence[Axes], key: str) -> list[ReportedRun]:
    """The runs that a figure's axes select, of those whose run.json has a fact of the engine."""
    runs = [run for run in study.complete if facts_of(run).get(key)]
    return [run for run in runs if not axes or any(study.matches(run, axis) for axis in axes)]


def facts_of(run: ReportedRun) -> dict[str, Any]:
    """Entries of run.json of the offload engine; empty for other runs."""
    facts = run.record.engine.stated("offload")
    return facts if isinstance(facts, dict) else {}


def policy_of(run: ReportedRun) -> str:
    """The offload policy."""
    return str(run.settings["device"]["policy"])


def is_ablated(run: ReportedRun) -> bool:
    """True if a part of the schedule differs from its default."""
    return any(run.settings["device"].get(key) is not None for key in ABLATIONS)


def decoding_pass_s(run: ReportedRun) -> float:
    """Seconds of the median pass of decoding, stalled ones left out."""
    steps = run.records.steps
    decode = steps[(steps["phase"] == "decode") & ~steps["stalled"].astype(bool)]
    return float(decode["duration_s"].median())


def by_conditions(runs: list[ReportedRun]) -> dict[str, list[ReportedRun]]:
    """Runs by what decides their prediction beside the policy's split, in words."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        device, workload = run.settings["device"], run.settings["workload"]
        prompt, room = workload.get("prompt_tokens"), device.get("device_gib")
        words = (
            run.settings["model"]["name"],
            device.get("hardware"),
            f"prompts of {prompt} tokens" if prompt else None,
            f"weights {device.get('weights') or 'streamed'}",
            f"{room:g} GiB of cache on the device" if room else None,
        )
        groups.setdefault(", ".join(filter(None, words)), []).append(run)
    return groups
