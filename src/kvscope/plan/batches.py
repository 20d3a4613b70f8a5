"""Batches: the experiments of a plan that one process takes from settings to metrics.

Modeled experiments share a process, because the start of Python and vLLM takes longer than most of
them. Measured experiments that comparisons connect (`plan.together`) are in one batch, whose
process measures them in rounds. A batch is part `part` of `parts` of its kind, which depends on
nothing but the plan: each process finds the same one.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

RULE = "run_experiments"  # of the workflow; a batch's jobs on a cluster have this name, too
MODELED, MEASURED = "modeled", "measured"
KINDS = (MODELED, MEASURED)
# Seconds of a batch beside its experiments: two processes that import vLLM, one under the profiler.
CAMPAIGN_S = 40
LEAST_IN_BATCH = 10  # fewer modeled experiments are not worth another import of vLLM
LINE = re.compile(r"\[\d+/\d+\] ([^\s:]+): (?:failed: (?P<reason>.*)|(?P<took_s>[\d.]+) s)")


def units(manifest: Mapping[str, Any], kind: str) -> list[list[str]]:
    """The ids that must stay together, the longest-running first; a batch has whole units."""
    ids: dict[Any, list[str]] = defaultdict(list)
    seconds: dict[Any, int] = defaultdict(int)
    for number, entry in enumerate(manifest["experiments"]):
        needs = entry["resources"]
        if kind == (MODELED if needs["batch"] else MEASURED):
            unit = number if kind == MODELED else (needs["together"], needs["exclusive"])
            ids[unit].append(entry["id"])
            seconds[unit] += needs["share_s"]
    return [ids[unit] for unit in sorted(ids, key=lambda u: (-seconds[u], ids[u][0]))]


def count(manifest: Mapping[str, Any], kind: str, slots: int) -> int:
    """The number of batches of a plan where so many run at a time."""
    return _count(len(units(manifest, kind)), kind, slots)


def _count(units: int, kind: str, slots: int) -> int:
    least = LEAST_IN_BATCH if kind == MODELED else 1
    return min(slots, units, max(1, units // least))


def parts(manifest: Mapping[str, Any], nodes: int | None, cores: int | None) -> dict[str, int]:
    """The number of batches of each kind, as workers of a workflow's `nodes` and `cores` take them.

    On one machine measured experiments share its cores, so they are one batch.
    """
    slots = {MODELED: nodes or cores or 1, MEASURED: nodes or 1}
    return {kind: count(manifest, kind, slots[kind]) for kind in KINDS}


def batch(manifest: Mapping[str, Any], kind: str, part: int, parts: int) -> list[str]:
    """The ids of one batch, in the order in which they are run; all batches take about as long."""
    return [i for unit in units(manifest, kind)[part::parts] for i in unit]


def needs(manifest: Mapping[str, Any], kind: str, part: int, parts: int) -> dict[str, int]:
    """The resources of a batch: those of its most demanding experiment, and the sum of their times.

    Memory is that of engines side by side, which `plan.together` limits to what the machine has.
    """
    ids = set(batch(manifest, kind, part, parts))
    resources = [entry["resources"] for entry in manifest["experiments"] if entry["id"] in ids]
    most = {key: max(row[key] for row in resources) for key in ("threads", "gpus", "exclusive")}
    memory_mib = max(row["memory_mib"] for row in resources)
    if kind == MEASURED:
        memory_mib += sum(row["parked_mib"] for row in resources)
    return most | {
        "memory_mib": memory_mib,
        "walltime_s": expected_s(resources),
    }


def expected_s(needs: Sequence[Mapping[str, int]]) -> int:
    """Expected seconds of experiments with these resources in one batch."""
    return CAMPAIGN_S + sum(entry["share_s"] for entry in needs)


def shared_s(needs: Sequence[Mapping[str, int]], cores: int) -> int | None:
    """Seconds in as many batches as so many cores take at a time; None unless all are modeled.

    None, too, where they are one batch on any number of cores.
    """
    parts = _count(len(needs), MODELED, cores)
    if parts < 2 or not all(entry["batch"] for entry in needs):
        return None
    return CAMPAIGN_S + sum(entry["share_s"] for entry in needs) // parts


def name(study: str, kind: str, part: int, parts: int) -> str:
    """The name of a batch's job on a cluster: the rule and its wildcards, as Snakemake's jobs."""
    return f"{RULE} {study} {kind} {part} {parts}"


def of_name(manifest: Mapping[str, Any], name: str) -> list[str]:
    """The experiments of a job of this name; empty if the name is not a batch of the plan."""
    pattern = rf"{RULE} {re.escape(manifest['study'])} ({'|'.join(KINDS)}) (\d+) ([1-9]\d*)"
    match = re.fullmatch(pattern, name)
    return batch(manifest, match[1], int(match[2]), int(match[3])) if match else []


def line(number: int, of: int, experiment_id: str, took_s: float, reason: str | None) -> str:
    """Message of a batch's process when an experiment has ended."""
    how = f"{took_s:.1f} s" if reason is None else f"failed: {reason}"
    return f"[{number}/{of}] {experiment_id}: {how}"


def ends(log: str) -> dict[str, tuple[float, str | None]]:
    """Seconds that experiments took, and why they failed, by id, from the lines of a log."""
    matches = (LINE.match(line) for line in log.splitlines())
    return {m[1]: (float(m["took_s"] or 0.0), m["reason"]) for m in matches if m}
