"""The members of a study's packs: one an experiment that has no result yet."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope import accounts, runfile
from kvscope.accounts import ANALYSED
from kvscope.layout import experiment_directory, tables_directory
from kvscope.plan.manifest import experiment_path
from submitit_packs.model import Member

# What the stages after the run are expected to take, and may take, as in workflow/rules; the second
# has the five minutes that a run may take beyond twice what is expected.
STAGES_EXPECTED_S, STAGES_S = 120, 1500


def members(manifest: Mapping[str, Any], results: Path) -> list[Member]:
    """The experiments of a study's manifest that are not measured, collected and analysed."""
    return [
        member(entry, results)
        for entry in manifest["experiments"]
        if not is_done(entry["id"], results)
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


def command(experiment_id: str, results: Path) -> str:
    """The shell command of an experiment: run, collect, analyse."""
    run = experiment_directory(results, experiment_id)
    tables = tables_directory(run)
    kvscope = [sys.executable, "-m", "kvscope.cli"]
    stages = [
        ["run", str(experiment_path(experiment_id, results)), "--out", str(run)],
        ["collect", str(run), "--out", str(tables), "--perfetto"],
        ["analyse", str(run), "--out", str(tables)],
    ]
    return " && ".join(shlex.join([*kvscope, *stage]) for stage in stages)


def is_done(experiment_id: str, results: Path) -> bool:
    """Whether an experiment is measured and analysed, and no new measurement is requested."""
    run = experiment_directory(results, experiment_id)
    done = (run / runfile.RUN_DONE).exists() and not runfile.is_requested(run)
    return done and accounts.is_current(tables_directory(run), ANALYSED, run)
