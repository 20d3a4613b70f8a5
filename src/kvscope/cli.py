"""The command line: one command for each stage, and commands that inspect and compare."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope import __version__
from kvscope.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    BadInput,
    KvscopeError,
    reason_of,
)
from kvscope.layout import RESULTS, experiment_directory, packs_directory
from kvscope.plan.layers import SHIPPED

# A stage is imported when its command runs: `kvscope plan` must not import vLLM.

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Command = Callable[[argparse.Namespace], int]

CONFIG = Path("config")
HELP_WIDTH = 78
COMMANDS: list[Callable[[Commands], None]] = []
"""Add each command to a parser, in the order of `kvscope --help`."""
OVERRIDES_HELP = "settings in Hydra's grammar; config/README.md explains every key"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (0 done, 1 failed while working, 2 bad input)."""
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions of a command line
        from kvscope import completion

        completion.complete(parser)
    given = parser.parse_args(arguments)
    command: Command = given.command
    try:
        return command(given)
    except KvscopeError as error:
        print(f"kvscope: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("kvscope: interrupted", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output ended, as in `| head`
        return EXIT_DONE
    except OSError as error:  # not converted to a KvscopeError where it was raised
        place = f"{error.filename}: " if error.filename else ""
        print(f"kvscope: {place}{reason_of(error)}", file=sys.stderr)
        return EXIT_FAILED


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="kvscope",
        description="Shows how an LLM serving engine uses its KV cache under concurrency, and "
        "what happens when the cache overflows.",
        epilog="One path: plan → run → collect → analyse → report. Each stage reads the files of "
        "the stage before; Snakemake runs them all (see README.md).",
    )
    parser.add_argument("--version", action="version", version=f"kvscope {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add_command in COMMANDS:
        add_command(commands)
    return parser


Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*names: str, **options: Any) -> Argument:
    """An argument of a command, as for argparse's `add_argument`."""
    return names, options


def _path(name: str, text: str | None = None, **options: Any) -> Argument:
    return _argument(name, help=text, **{"type": Path, "metavar": "DIR"} | options)


def _flag(name: str, text: str, *short: str) -> Argument:
    return _argument(*short, name, action="store_true", help=text)


def _command(examples: Sequence[str], *arguments: Argument) -> Callable[[Command], Command]:
    """Make a function `_NAME` the command NAME: its docstring is the help."""

    def register(function: Command) -> Command:
        name, text = function.__name__[1:], " ".join(str(function.__doc__).split())

        def add(commands: Commands) -> None:
            parser = commands.add_parser(
                name,
                help=text.split(".")[0].split(":")[0],
                description=textwrap.fill(text, HELP_WIDTH),
                epilog="\n  ".join(("examples:", *(f"kvscope {name} {e}" for e in examples))),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            parser.set_defaults(command=function)
            for names, options in arguments:
                parser.add_argument(*names, **options)

        COMMANDS.append(add)
        return function

    return register


def _directory(text: str) -> Path:
    """A path that must be an existing directory (a type for argparse)."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return Path(text)


RUN_PATHS = _path("runs", "a run's directory", nargs="+")
CONFIG_DIR = _path(
    "--config-dir",
    "directory of studies and options (default: config); it takes precedence over the "
    "configuration that kvscope ships",
    type=_directory,
    default=CONFIG,
)
RESULTS_DIR = _path("--results", default=RESULTS)


# ---------------------------------------------------------------------------- new, plan


@_command(
    ("mine",),
    _argument("name", metavar="NAME", help="letters, digits, '-' and '_'"),
    _path("--config-dir", "write DIR/study/NAME.yaml (default: config)", default=CONFIG),
)
def _new(given: argparse.Namespace) -> int:
    """Write a study to start from: a commented file config/study/NAME.yaml."""
    from kvscope.plan import new

    print(new.create_study(given.name, given.config_dir))
    elsewhere = [] if given.config_dir == CONFIG else ["--config-dir", str(given.config_dir)]
    print("next:", shlex.join(["kvscope", "plan", f"study={given.name}", *elsewhere]))
    return EXIT_DONE


@_command(
    (
        "study=quickstart",
        "study=quickstart 'seed=1,2' --json",
        "model=tiny-gqa workload=zipf 'cache.blocks=40,80' 'seed=range(1,4)'",
        "study=quickstart --write results",
    ),
    _argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help=f"study=NAME for config/study/NAME.yaml; {OVERRIDES_HELP}",
    ),
    _flag("--json", "print the experiments as JSON"),
    _path("--write", "write the manifest and one experiment.yaml per experiment below DIR"),
    CONFIG_DIR,
)
def _plan(given: argparse.Namespace) -> int:
    """List the experiments of a study or of a set of overrides, with their expected times.

    Nothing is run.
    """
    from kvscope.plan import grid, manifest, show
    from kvscope.workload import requests

    study, overrides = grid.split_study(given.overrides)
    plan = grid.expand(study, overrides, given.config_dir)
    for planned in plan.experiments:
        requests.check(planned.experiment)
    needs = manifest.resources_of(plan, given.write or RESULTS)
    if warning := show.memory_warning(plan):
        print(f"kvscope: warning: {warning}", file=sys.stderr)
    if given.write:
        path = manifest.write(plan, given.write)
        name = path.parent.name
        command = f"snakemake --profile profiles/local --config study={name}"
        print(f"{path}: {len(plan.experiments)} experiments; run them: {command}", file=sys.stderr)
    if given.json:
        print(json.dumps(show.as_json(plan, needs), indent=2))
    else:
        show.print_table(plan, needs)
    return EXIT_DONE


# ---------------------------------------------------------------------------------- run


@_command(
    (
        "results/experiments/ID/experiment.yaml",
        "model=tiny-llama workload=zipf workload.num_requests=8 cache.blocks=60 --out mine",
    ),
    _argument(
        "experiment",
        nargs="+",
        metavar="WORD",
        help=f"a planned experiment's file, or {OVERRIDES_HELP}",
    ),
    _path("--out", "default: results/experiments/<id>"),
    _flag("--force", "measure a finished run again"),
    _flag(
        "--multirun",
        "run every experiment of a grid, one after the other, modeled ones in one process "
        "(Snakemake runs all stages)",
        "-m",
    ),
    _flag("--tables", "with --multirun of modeled experiments: collect and analyse each as well"),
    CONFIG_DIR,
)
def _run(given: argparse.Namespace) -> int:
    """Run one experiment: build vLLM, warm up, measure the repeats, and write the records.

    The repeats are measured under Nsight Systems where it is available.
    """
    from kvscope import batch

    experiments = _experiments(given.experiment, given.config_dir)
    if len(experiments) != 1 and not given.multirun:
        raise BadInput(
            f"these settings make {len(experiments)} experiments and `kvscope run` takes one; "
            "leave one value for each key, or run all of them: --multirun, or with all five stages "
            f"snakemake --profile profiles/local --config {_as_config(given.experiment)}"
        )
    if given.multirun and given.out:
        raise BadInput(
            "run --multirun: --out names the directory of one run; leave it out, and each run is "
            "written to results/experiments/<id>"
        )
    if batch.fits(experiments):
        places = [experiment_directory(RESULTS, e.id) for e in experiments]
        pairs = zip(experiments, places, strict=True)
        return batch.run_together([batch.Job(*pair, given.force, given.tables) for pair in pairs])
    if given.tables:
        raise BadInput("run --tables: takes several experiments of device=modeled, and --multirun")
    failed = [e.id for e in experiments if not _measure(e, given)]
    if failed:
        raise KvscopeError(f"{len(failed)} of {len(experiments)} failed: {', '.join(failed)}")
    return EXIT_DONE


def _measure(experiment: Experiment, given: argparse.Namespace) -> bool:
    """Run one experiment; print its directory, or why it failed. Returns whether it completed."""
    from kvscope import runfile
    from kvscope.run import supervisor

    directory = given.out or experiment_directory(RESULTS, experiment.id)
    facts = supervisor.run(experiment, directory, force=given.force)
    if facts["status"] == runfile.COMPLETE:
        print(directory)
        return True
    log = runfile.log_path(directory)
    print(f"kvscope: {experiment.id} failed: {facts['reason']} (log: {log})", file=sys.stderr)
    return False


def _experiments(words: list[str], config_dir: Path) -> list[Experiment]:
    from kvscope.plan import experiment, grid

    if all(word.endswith((".yaml", ".yml")) and "=" not in word for word in words):
        return [experiment.load(Path(word)) for word in words]
    study, overrides = grid.split_study(words)
    return [planned.experiment for planned in grid.expand(study, overrides, config_dir).experiments]


def _as_config(words: list[str]) -> str:
    """The overrides in the form of `snakemake --config`."""
    study = [word for word in words if word.startswith("study=")]
    overrides = " ".join(word for word in words if not word.startswith("study="))
    return " ".join([*study, *([f'overrides="{overrides}"'] if overrides else [])])


# ------------------------------------------------------------------------------ collect


@_command(
    ("results/experiments/ID --perfetto", "--nsys report.sqlite --out tables"),
    _path("run", "a run's directory", nargs="?"),
    _path("--nsys", "an nsys SQLite export", metavar="FILE.sqlite"),
    _path("--out", "default: results/tables/<id> for a run's directory"),
    _flag("--perfetto", "also write a trace for ui.perfetto.dev"),
)
def _collect(given: argparse.Namespace) -> int:
    """Write the tables of a run: its nsys export and its host records, aligned on one timeline.

    Or write the tables of any nsys export by itself.
    """
    from kvscope.accounts import COLLECTED
    from kvscope.collect import collector
    from kvscope.files import read_json
    from kvscope.layout import tables_directory

    if (given.run is None) == (given.nsys is None):
        raise BadInput("collect: give a run's directory, or --nsys FILE.sqlite with --out DIR")
    if given.nsys is not None:
        if given.out is None:
            raise BadInput("collect --nsys: --out DIR must name the directory of the tables")
        out = given.out
        collector.collect_nsys(given.nsys, out)
    else:
        out = given.out or tables_directory(given.run)
        collector.collect_run(given.run, out, perfetto=given.perfetto)
    for warning in read_json(out / COLLECTED)["warnings"]:
        print(f"kvscope: {warning}", file=sys.stderr)
    print(out)
    return EXIT_DONE


@_command(
    (
        "unboxkv log-Yarn-Llama-2-7b-64k-….log --out results/published/mixed",
        "unboxkv-series STEPS.csv STATS.csv --out results/published/swap",
        "unboxkv-series LONG.csv --series swap --out results/published/swap",
        "unboxkv-trace kv_read_pattern.json kv_write_pattern.json --out results/published/trace",
    ),
    _argument(
        "kind",
        metavar="KIND",
        help="what the files are: unboxkv (a log), unboxkv-series or unboxkv-trace",
    ),
    _path("paths", "a published file", nargs="+", metavar="PATH"),
    _argument("--series", metavar="NAME", help="which run of a file that holds several"),
    _path("--out", "the run's directory to write", required=True),
)
def _import(given: argparse.Namespace) -> int:
    """Convert published measurements into a run's directory, for analyse, report and compare.

    The files are the step and stats series of the UnBoxKV-IO artifact, as two files in any order or
    one file of the long form; its traces of kernels' reads and writes, both files or one; or one of
    its logs of vLLM 0.4.2 (unboxkv).
    """
    from kvscope.collect.unboxkv import importer

    summary = importer.import_run(given.kind, given.paths, given.out, given.series)
    if summary:
        print(summary)
    print(given.out)
    return EXIT_DONE


# ---------------------------------------------------------------------- analyse, report


@_command(
    ("results/experiments/ID", "results/experiments/* --json"),
    RUN_PATHS,
    _flag("--json", "print the metrics as JSON"),
    _path("--out", "default: results/tables/<id> of each run"),
)
def _analyse(given: argparse.Namespace) -> int:
    """Compute the metrics of runs, with confidence intervals, and check whether they are valid."""
    from kvscope.analyse import experiment, show
    from kvscope.layout import tables_directory

    if given.out and len(given.runs) > 1:
        raise BadInput("analyse: --out names the directory of one run; leave it out for several")
    found = []
    for run in given.runs:
        found.append(experiment.analyse(run, given.out or tables_directory(run)))
        if not given.json:
            print(end="\n" if len(found) > 1 else "")
            show.print_table(found[-1])
    if given.json:
        print(json.dumps([show.as_json(metrics) for metrics in found], indent=2, allow_nan=False))
    return EXIT_DONE


@_command(
    ("quickstart", "results/experiments/*"),
    _argument(
        "what",
        nargs="+",
        metavar="STUDY | DIR",
        help="a planned study's name, or runs' directories",
    ),
    RESULTS_DIR,
    _path("--out", "default: results/studies/<study>"),
)
def _report(given: argparse.Namespace) -> int:
    """Write the page and the figures of a study, or of runs given by their directories."""
    from kvscope.report.figures.registry import drawings, missing_figures
    from kvscope.report.load import load
    from kvscope.report.study import write_report
    from kvscope.report.summary import refusals, summary

    found = load(given.what, given.results)
    drawn = drawings(found)
    print(write_report(found, drawn, given.results, given.out))
    print("\n".join([*summary(found), *missing_figures(found, drawn)]))
    if refused := refusals(found):
        raise KvscopeError("not shown: " + ", ".join(refused))
    return EXIT_DONE


@_command(
    ("results/experiments/* --out config/device/here.yaml", "--published"),
    _path("runs", "a measured run", nargs="*"),
    _flag("--published", "fit the published figures"),
    _path("--out", "the device's file: config/device/NAME.yaml", metavar="FILE"),
    _argument(
        "--samples", type=int, default=20, metavar="N", help="of the bootstrap (default: 20)"
    ),
)
def _calibrate(given: argparse.Namespace) -> int:
    """Fit the cost model of device=modeled to measured runs, and write a fitted device.

    The fit has bootstrap intervals and the errors of runs that are left out. With --published it is
    made to Figures 3a, 3c, 4a and 8a of the paper.
    """
    from kvscope.analyse.calibration import calibrate

    if given.published == bool(given.runs):
        raise BadInput("calibrate: give the directories of measured runs, or --published")
    if given.published and given.out:
        raise BadInput("calibrate --published: --out is for measured runs")
    if given.samples < 2:
        raise BadInput(f"calibrate: --samples is {given.samples} but must be 2 at least")
    if given.published:
        found = calibrate.calibrate_published(given.samples)
    else:
        found = calibrate.calibrate_runs(given.runs, given.samples)
    print("\n".join(found.lines()))
    if given.out:
        calibrate.write_device(found, given.out)
        print(given.out)
    return EXIT_DONE


@_command(
    ("steps.csv --run results/experiments/ID",),
    _path("trace", "the steps of the other one, .csv or .json", metavar="TRACE"),
    _path("--run", "the run", required=True),
    _argument("--repeat", type=int, default=0, metavar="N", help="default: 0"),
    _flag("--json", "print the score as JSON"),
)
def _score(given: argparse.Namespace) -> int:
    """Compare the steps of another simulator with a run of the same workload, step by step.

    It names the first step that differs, and compares victims, preemptions, recomputed tokens and
    durations. docs/SCORE.md has the format.
    """
    from kvscope.analyse.score.score import score

    found = score(given.trace, given.run, given.repeat)
    print(json.dumps(found.to_json, indent=2) if given.json else "\n".join(found.lines))
    return EXIT_DONE


# ----------------------------------------------------------------------- submit, status


@_command(
    (
        "study=quickstart --cluster local",
        "study=quickstart --cluster slurm --queue gpu",
        "study=quickstart --cluster pbs --account PROJECT --dry-run",
    ),
    _argument("overrides", nargs="+", metavar="OVERRIDE", help=f"study=NAME; {OVERRIDES_HELP}"),
    _argument("--cluster", required=True, choices=("pbs", "slurm", "local")),
    _argument(
        "--site",
        metavar="NAME | FILE",
        help="nodes and queues: polaris (for pbs), slurm, local, or a YAML file of your own",
    ),
    _argument("--account", metavar="PROJECT", help="the project that is charged"),
    _argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME",
        help="a queue or partition to use, several times in order of preference",
    ),
    _argument(
        "--length",
        type=float,
        default=60,
        metavar="MINUTES",
        help="how long a pack shall take (default: 60)",
    ),
    _argument("--max-nodes", type=int, metavar="N", help="nodes of one pack at most"),
    _argument(
        "--min-fill",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of a pack's GPUs that must be used (default: 0.5)",
    ),
    _argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a shell line on each node before anything else, like 'source envs/polaris.sh'",
    ),
    _argument(
        "--options",
        default="",
        metavar="KEY=VALUE,…",
        help="further parameters of submitit, like slurm_qos=high or pbs_filesystems=home:eagle",
    ),
    _flag("--dry-run", "print every job script and the node-hours; no more"),
    RESULTS_DIR,
    CONFIG_DIR,
)
def _submit(given: argparse.Namespace) -> int:
    """Run a study on a cluster without Snakemake: its experiments are packed on nodes.

    Each experiment has a GPU, and the packs are submitted. Called again, it finds what it
    submitted before.
    """
    from kvscope.plan import grid, manifest

    _require_packs()
    from kvscope.cluster import submission

    study, overrides = grid.split_study(given.overrides)
    planned = manifest.plan_if_changed(study, given.config_dir, given.results, overrides)
    cluster = submission.Cluster(
        name=given.cluster,
        site=given.site,
        account=given.account,
        queues=tuple(given.queue),
        length_min=given.length,
        max_nodes=given.max_nodes,
        min_fill=given.min_fill,
        setup=tuple(given.setup),
        options=given.options,
    )
    if given.dry_run:
        print("\n".join(submission.preview(planned, given.results, cluster)))
        return EXIT_DONE
    ended = submission.submit(planned, given.results, cluster, print)
    if failed := [outcome.key for outcome in ended if not outcome.ok]:
        raise KvscopeError(f"{len(failed)} of {len(ended)} failed: {', '.join(failed)}")
    print(f"next: kvscope report {planned['study']} --results {given.results}")
    return EXIT_DONE


def _require_packs() -> None:
    """BadInput if what submits to clusters is not installed."""
    from importlib.util import find_spec

    if find_spec("submitit_packs") is None:
        raise BadInput(
            "clusters need the packages in packages/ of kvscope's repository: `make env`, or pip "
            "install packages/snakemake-executor-plugin-submitit packages/submitit-pbs"
        )


@_command(
    ("quickstart", "quickstart --watch", "results/experiments/*"),
    _argument("what", nargs="+", metavar="STUDY | DIR", help="as for report"),
    RESULTS_DIR,
    _argument(
        "--watch",
        nargs="?",
        type=float,
        const=10.0,
        metavar="SECONDS",
        help="show what was submitted to a cluster again and again (default: every 10 s)",
    ),
    _flag("--all", "a row for every submitted experiment"),
)
def _status(given: argparse.Namespace) -> int:
    """Show the state of a study: experiments with results, valid ones, reasons of the others.

    Also of what was submitted to a cluster: where it runs, what it costs and when it is done.
    """
    from kvscope.report.load import load
    from kvscope.report.summary import summary

    if given.watch is None:
        print("\n".join(summary(load(given.what, given.results))))
    if len(given.what) == 1 and packs_directory(given.results).is_dir():
        _show_packs(given)
    elif given.watch is not None:
        raise BadInput(f"status --watch: nothing was submitted from {given.results}")
    return EXIT_DONE


def _show_packs(given: argparse.Namespace) -> None:
    """The table of a study's packs, once or until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from kvscope.plan import manifest

    _require_packs()
    from kvscope.cluster import show

    try:
        planned = manifest.read(given.what[0], given.results)
    except BadInput:
        return  # a run's directory, which no pack names
    if given.watch is None:
        if show.overview_of(planned, given.results).packs:
            Console().print(show.table(planned, given.results, given.all))
        return
    with Live(auto_refresh=False) as live:
        while True:
            live.update(show.table(planned, given.results, given.all), refresh=True)
            time.sleep(given.watch)


COMPARED = "a study's name or directory, or a run's directory"


@_command(
    ("results/studies/quickstart /other/results/studies/quickstart",),
    _argument("first", metavar="A", help=COMPARED),
    _argument("second", metavar="B", help=COMPARED),
    RESULTS_DIR,
    _flag("--json", "print the comparison as JSON"),
)
def _compare(given: argparse.Namespace) -> int:
    """Compare two studies, or one study in two results, or two runs: a verdict on each metric.

    A difference is one of disjoint 95 % confidence intervals.
    """
    from kvscope.report import compare

    sides = (compare.read(what, given.results) for what in (given.first, given.second))
    found = compare.differences(*sides)
    if given.json:
        print(json.dumps(compare.as_json(found), indent=2, allow_nan=False))
    else:
        print("\n".join(compare.lines(found)))
    return EXIT_DONE


# --------------------------------------------------------------- check, doctor, shipped


@_command(("results/experiments/*",), RUN_PATHS, _flag("--brief", "do not list every oracle"))
def _check(given: argparse.Namespace) -> int:
    """Check a run: files unchanged, schemas correct, every oracle holds."""
    from kvscope.analyse.check import inspect_run
    from kvscope.analyse.checklist import format_lines, summary

    complaints = 0
    for run in given.runs:
        found = inspect_run(run)
        complaints += len(found.complaints)
        for complaint in found.complaints:
            print(f"kvscope: {complaint}", file=sys.stderr)
        if found.verdicts:
            print(f"{run}: {summary(found.verdicts)}")
            if not given.brief:
                print("\n".join(format_lines(found.verdicts)))
    return EXIT_FAILED if complaints else EXIT_DONE


@_command(("",))
def _doctor(given: argparse.Namespace) -> int:
    """Check this machine for what kvscope needs, with advice on what is missing."""
    from kvscope import doctor

    return doctor.main()


@_command(("",))
def _shipped(given: argparse.Namespace) -> int:
    """Print the directory of the files that kvscope ships: config, Snakefile, profiles, envs."""
    print(SHIPPED)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["EXIT_BAD_INPUT", "main"]
