"""The members of a study's packs: experiments that have no result yet, modeled ones in batches."""

import hashlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope import accounts, runfile
from kvscope.accounts import ANALYSED
from kvscope.layout import experiment_directory, tables_directory
from kvscope.plan import batches
from kvscope.plan.manifest import experiment_path
from submitit_packs.model import Member

# What the stages after the run are expected to take, and may take, as in workflow/rules; the second
# has the five minutes that a run may take beyond twice what is expected.
STAGES_EXPECTED_S, STAGES_S, STARTS_S = 120, 1500, 300
KVSCOPE = (sys.executable, "-m", "kvscope.cli")


def unfinished(manifest: Mapping[str, Any], results: Path) -> set[str]:
    """The experiments of a study's manifest that are not measured, collected and analysed."""
    return {e["id"] for e in manifest["experiments"] if not is_done(e["id"], results)}


def members(manifest: Mapping[str, Any], results: Path) -> list[Member]:
    """What takes the unfinished experiments of a study to their metrics.

    A batch is the same however many of its experiments are finished, which it keeps.
    """
    todo = unfinished(manifest, results)
    single = todo - set(batches.batched(manifest))
    parts = batches.count(manifest, sys.maxsize)
    return [member(e, results) for e in manifest["experiments"] if e["id"] in single] + [
        batch(manifest, part, parts, results)
        for part in range(parts)
        if todo & set(batches.batch(manifest, part, parts))
    ]


def member(entry: Mapping[str, Any], results: Path) -> Member:
    """An experiment of a manifest, as a command that takes it from its settings to its metrics."""
    needs = entry["resources"]
    return Member(
        key=entry["id"],
        name=entry["id"],
        command=command(entry["id"], results),
        cwd=str(Path.cwd()),
        expected_s=float(needs["walltime_s"] + STAGES_EXPECTED_S),
        timeout_s=2.0 * needs["walltime_s"] + STAGES_S,
        gpus=needs["gpus"],
        exclusive=bool(needs["exclusive"]),
    )


def batch(manifest: Mapping[str, Any], part: int, parts: int, results: Path) -> Member:
    """A batch of modeled experiments, which one command takes from settings to metrics."""
    ids = batches.batch(manifest, part, parts)
    expected_s = batches.walltime_s(manifest, part, parts)
    files = [str(experiment_path(id_, results)) for id_ in ids]
    words = ["run", "--multirun", "--tables", "--results", str(results), *files]
    same = hashlib.sha256("\0".join(ids).encode()).hexdigest()[:10]
    return Member(
        key=f"{manifest['study']}-batch-{part}-of-{parts}-{same}",
        name=batches.name(manifest["study"], part, parts),
        command=shlex.join([*KVSCOPE, *words]),
        cwd=str(Path.cwd()),
        expected_s=float(expected_s),
        timeout_s=2.0 * expected_s + STARTS_S,
        gpus=0,
    )


def command(experiment_id: str, results: Path) -> str:
    """The shell command of an experiment: run, collect, analyse."""
    run = experiment_directory(results, experiment_id)
    tables = tables_directory(run)
    stages = [
        ["run", str(experiment_path(experiment_id, results)), "--out", str(run)],
        ["collect", str(run), "--out", str(tables), "--perfetto"],
        ["analyse", str(run), "--out", str(tables)],
    ]
    return " && ".join(shlex.join([*KVSCOPE, *stage]) for stage in stages)


def is_done(experiment_id: str, results: Path) -> bool:
    """Whether an experiment is measured and analysed, and no new measurement is requested."""
    run = experiment_directory(results, experiment_id)
    done = (run / runfile.RUN_DONE).exists() and not runfile.is_requested(run)
    return done and accounts.is_current(tables_directory(run), ANALYSED, run)
