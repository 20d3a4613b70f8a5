"""Batches: the modeled experiments of a plan that share a process, and what such a process says.

What takes the time of a short modeled run is the start of Python and vLLM. A batch is part
`part` of `parts`, which depends on nothing but the plan: each process finds the same one.
"""

import re
from collections.abc import Mapping
from typing import Any

RULE = "run_batch"  # of the workflow; a batch's jobs on a cluster have this name, too
LEAST_IN_BATCH = 10  # fewer modeled experiments are not worth another import of vLLM
LINE = re.compile(r"\[\d+/\d+\] ([^\s:]+): (?:failed: (?P<reason>.*)|(?P<took_s>[\d.]+) s)")


def batched(manifest: Mapping[str, Any]) -> list[str]:
    """The ids of the experiments in batches, those that take longest first.

    None where there is but one such experiment: it is run as any other.
    """
    needs = {e["id"]: e["resources"] for e in manifest["experiments"] if e["resources"]["batch"]}
    return sorted(needs, key=lambda i: (-needs[i]["walltime_s"], i)) if len(needs) > 1 else []


def count(manifest: Mapping[str, Any], slots: int) -> int:
    """The number of batches of a plan where so many run at a time."""
    ids = batched(manifest)
    return min(slots, max(1, len(ids) // LEAST_IN_BATCH)) if ids else 0


def batch(manifest: Mapping[str, Any], part: int, parts: int) -> list[str]:
    """The ids of one batch, in the order in which they are run; all batches take about as long."""
    return batched(manifest)[part::parts]


def walltime_s(manifest: Mapping[str, Any], part: int, parts: int) -> int:
    """Seconds that a batch is expected to take."""
    needs = {entry["id"]: entry["resources"] for entry in manifest["experiments"]}
    return sum(needs[id_]["walltime_s"] for id_ in batch(manifest, part, parts))


def name(study: str, part: int, parts: int) -> str:
    """The name of a batch's job on a cluster: the rule and its wildcards, as Snakemake's jobs."""
    return f"{RULE} {study} {part} {parts}"


def of_name(manifest: Mapping[str, Any], name: str) -> list[str]:
    """The experiments of a job of this name; none if it is no batch of the plan."""
    match = re.fullmatch(rf"{RULE} {re.escape(manifest['study'])} (\d+) ([1-9]\d*)", name)
    return batch(manifest, int(match[1]), int(match[2])) if match else []


def line(number: int, of: int, experiment_id: str, took_s: float, reason: str | None) -> str:
    """What a batch's process says when an experiment has ended."""
    how = f"{took_s:.1f} s" if reason is None else f"failed: {reason}"
    return f"[{number}/{of}] {experiment_id}: {how}"


def ends(log: str) -> dict[str, tuple[float, str | None]]:
    """By id, the seconds that experiments took, and why they failed, from the lines of a log."""
    found = (LINE.match(line) for line in log.splitlines())
    return {m[1]: (float(m["took_s"] or 0.0), m["reason"]) for m in found if m}
