"""Run experiments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.base.errors import EXIT_DONE, BadInput, KvscopeError
from kvscope.base.layout import RESULTS, experiment_directory
from kvscope.cli.commands.arguments import (
    CONFIG_DIR,
    OVERRIDES_HELP,
    RESULTS_DIR,
    argument,
    flag,
    path,
)
from kvscope.cli.commands.command import command

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment


@command(
    (
        "results/experiments/ID/experiment.yaml",
        "model=tiny-llama workload=zipf workload.num_requests=8 cache.blocks=60 --out mine",
        "study=quickstart device=cuda --multirun hydra/launcher=submitit_slurm "
        "hydra.launcher.partition=gpu",
    ),
    argument(
        "experiment",
        nargs="+",
        metavar="WORD",
        help=f"a planned experiment's file, or {OVERRIDES_HELP}",
    ),
    path("--out", "default: RESULTS/experiments/<id>"),
    RESULTS_DIR,
    flag("--force", "measure a finished run again"),
    flag(
        "--multirun",
        "run every experiment of a grid: measured ones together, in rounds, modeled ones in one "
        "process (Snakemake runs all stages)",
        "-m",
    ),
    flag("--tables", "with --multirun: collect and analyse each as well"),
    argument(
        "--compare",
        metavar="KEY",
        help="with --multirun: the key whose comparisons repeats.until is about (default: all)",
    ),
    path("--log", "with --multirun: a file that has the progress, too", metavar="FILE"),
    CONFIG_DIR,
)
def run(given: argparse.Namespace) -> int:
    """Run one experiment: build vLLM, warm up, measure the repeats, and write the records.

    Where Nsight Systems is available, one more repeat is served under it.
    """
    hydra = [word for word in given.experiment if word.startswith(("hydra/", "hydra."))]
    words = [word for word in given.experiment if word not in hydra]
    if hydra and not given.multirun:
        raise BadInput(f"run {' '.join(hydra)}: a launcher of Hydra's needs --multirun")
    experiments = _experiments(words, given.config_dir)
    if len(experiments) != 1 and not given.multirun:
        raise BadInput(
            f"these settings make {len(experiments)} experiments and `kvscope run` takes one; "
            "leave one value for each key, or run all of them: --multirun, or with all five stages "
            f"snakemake --profile profiles/local --config {_as_config(words)}"
        )
    if given.multirun and given.out:
        raise BadInput(
            "run --multirun: --out names the directory of one run; leave it out, and each run is "
            f"written to {given.results}/experiments/<id>"
        )
    if hydra:
        if given.results != RESULTS:
            raise BadInput("run --results: not with a launcher of Hydra's, which writes to results")
        return _launch(experiments, hydra, given)
    if not given.multirun and (given.tables or given.compare or given.log):
        raise BadInput("run --tables, --compare and --log: only with --multirun")
    return _run_all(experiments, given) if given.multirun else _run(experiments[0], given)


def _run(experiment: Experiment, given: argparse.Namespace) -> int:
    """Run one experiment; print its directory, or why it failed."""
    from kvscope.cli import batch
    from kvscope.run.display import Line

    directory = given.out or experiment_directory(given.results, experiment.id)
    with Line(sys.stderr) as line:
        (error,) = batch.run([batch.Job(experiment, directory, given.force)], line).values()
    if error is not None:
        raise error
    print(directory)
    return EXIT_DONE


def _run_all(experiments: list[Experiment], given: argparse.Namespace) -> int:
    """Run experiments, those on virtual clocks in one process, measured ones together."""
    from kvscope.cli import batch
    from kvscope.run.display import Line

    jobs = [
        batch.Job(e, experiment_directory(given.results, e.id), given.force, given.tables)
        for e in experiments
    ]
    with Line(sys.stderr, given.log) as line:
        return batch.run_all(jobs, line, given.compare)


def _launch(experiments: list[Experiment], hydra: list[str], given: argparse.Namespace) -> int:
    """Run experiments with a launcher of Hydra's; print each one's directory, or why it failed."""
    from kvscope.cli import multirun

    if given.tables:
        raise BadInput("run --tables: not with a launcher of Hydra's; `kvscope submit` collects")
    failed = multirun.launch(experiments, hydra, given.force)
    for experiment in experiments:
        if reason := failed.get(experiment.id):
            print(f"kvscope: {experiment.id} failed: {reason}", file=sys.stderr)
        else:
            print(experiment_directory(RESULTS, experiment.id))
    if failed:
        raise KvscopeError(f"{len(failed)} of {len(experiments)} failed: {', '.join(failed)}")
    return EXIT_DONE


def _experiments(words: list[str], config_dir: Path) -> list[Experiment]:
    from kvscope.plan import experiment, grid, manifest

    if all(word.endswith((".yaml", ".yml")) and "=" not in word for word in words):
        return [experiment.load(Path(word)) for word in words]
    study, overrides = manifest.split_study(words)
    plan = grid.expand(study, overrides, config_dir)
    for note in plan.notes:
        print(f"kvscope: note: {note}", file=sys.stderr)
    return [planned.experiment for planned in plan.experiments]


def _as_config(words: list[str]) -> str:
    """The overrides in the form of `snakemake --config`."""
    study = [word for word in words if word.startswith("study=")]
    overrides = " ".join(word for word in words if not word.startswith("study="))
    return " ".join([*study, *([f'overrides="{overrides}"'] if overrides else [])])
