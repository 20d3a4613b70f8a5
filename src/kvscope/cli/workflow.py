"""The functions that the Snakefile calls: options, plan, and the outputs to remake."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.base import layout
from kvscope.base.errors import BadInput
from kvscope.cli import packages
from kvscope.plan import batches, manifest
from kvscope.plan.wording import suggestion
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock_if_free
from kvscope.tables import accounts, attempts, runfile
from kvscope.tables.accounts import ANALYSED, COLLECTED
from kvscope.tables.runfile import RUN_DONE

DEFAULT_STUDY = "quickstart"
OPTIONS = ("study", "overrides", "remeasure")
INVALID, ALL, NONE = "invalid", "all", "none"


@dataclass(frozen=True)
class Options:
    """The options of `--config`: a study, overrides of it, and what to measure again."""

    study: str | None
    overrides: tuple[str, ...] = ()
    remeasure: str | None = None


def options(config: Mapping[str, Any]) -> Options:
    """Parse `snakemake --config`; BadInput for an unknown key or value.

    Overrides are in Hydra's grammar, as for `kvscope plan`. Without a study they vary the defaults;
    without both, the study is the quickstart.
    """
    for key in config:
        if key not in OPTIONS:
            raise BadInput(
                f"--config has no key {key!r}{suggestion(key, OPTIONS)}; there are "
                f"{', '.join(OPTIONS)}, and settings of experiments go into overrides: "
                f"--config overrides='{key}={config[key]}'"
            )
    remeasure = config.get("remeasure")
    if remeasure not in (None, INVALID, ALL, NONE):
        raise BadInput(f"remeasure is {remeasure!r} but must be {INVALID}, {ALL} or {NONE}")
    overrides = tuple(_words(config.get("overrides")))
    study = config.get("study")
    if study is None and not overrides:
        study = DEFAULT_STUDY
    return Options(None if study is None else str(study), overrides, remeasure)


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        words = shlex.split(str(value))
    except ValueError as error:
        raise BadInput(
            f"overrides is {value!r}, which cannot be split into words: {error}"
        ) from None
    if studies := [word for word in words if word.startswith("study=")]:
        raise BadInput(f"overrides holds {studies[0]!r}; write --config {studies[0]} overrides=…")
    return words


def plan(given: Options, config_dir: Path, results: Path) -> dict[str, Any]:
    """The study's manifest, planned again if its inputs changed.

    The directories of its runs are settled first, in case a process was killed there.
    """
    try:
        planned = manifest.plan_if_changed(given.study, config_dir, results, given.overrides)
    except Exception as error:
        from kvscope.plan import registry  # a plan that did not change takes no time to import it

        if fault := registry.fault_of_option(error):
            raise BadInput(fault) from None
        raise
    needs = [entry["resources"] for entry in planned["experiments"]]
    if note := manifest.device_note(needs, packages.device()):
        print(f"kvscope: note: {note}", file=sys.stderr)
    for directory in _directories(planned, results):
        settle_if_free(directory)
    withdraw_batches(planned, results)
    return planned


def withdraw_batches(found: Mapping[str, Any], results: Path) -> None:
    """Have the batches of a plan made again if an experiment of theirs lacks its metrics."""
    ids = [e["id"] for e in found["experiments"]]
    done = results / layout.STUDIES / found["study"]
    if any(not (results / layout.TABLES / i / ANALYSED).exists() for i in ids):
        for marker in done.glob("*-of-*.done"):
            marker.unlink()


def settle_if_free(directory: Path) -> None:
    """Settle a run's directory, unless it is settled or a supervisor holds its lock."""
    if not attempts.is_settled(directory):
        with hold_lock_if_free(directory, SUPERVISOR_LOCK) as free:
            if free:
                attempts.settle(directory)


def read_plan(given: Options, results: Path) -> dict[str, Any]:
    """Read the manifest that Snakemake's main process wrote; for its subprocesses."""
    return manifest.read(manifest.name_of(given.study, given.overrides), results)


def settings_of(
    batch: Any, planned: Mapping[str, Any], given: Options, results: Path, dag: Any
) -> list[str]:
    """The paths of the settings of a batch's experiments: the input of the rule that runs it.

    `batch` are the rule's wildcards. As a side effect it forces, like Snakemake's -R, the batch's
    output if an experiment of it is to be measured again, or its results are outdated.
    """
    paths = [manifest.experiment_path(i, results) for i in _ids(batch, planned)]
    if not dag.workflow.is_main_process:
        return [str(path) for path in paths]
    for directory in (path.parent for path in paths):
        if given.remeasure == NONE and not dag.workflow.dryrun and attempts.is_requested(directory):
            with hold_lock_if_free(directory, SUPERVISOR_LOCK) as free:
                if free:
                    attempts.withdraw_request(directory)
        if is_due(directory, given.remeasure):
            dag.forcefiles.add(str(_marker(batch, results)))
    return [str(path) for path in paths]


def _ids(batch: Any, planned: Mapping[str, Any]) -> list[str]:
    return batches.batch(planned, batch.kind, int(batch.part), int(batch.parts))


def _marker(batch: Any, results: Path) -> Path:
    """File whose presence says that a batch is done."""
    name = f"{batch.kind}-{batch.part}-of-{batch.parts}.done"
    return layout.study_directory(results, str(batch.study)) / name


def needs(batch: Any, planned: Mapping[str, Any]) -> dict[str, int]:
    """The resources of a batch; `batch` are the rule's wildcards."""
    return batches.needs(planned, batch.kind, int(batch.part), int(batch.parts))


def compare_option(planned: Mapping[str, Any]) -> str:
    """The option of `kvscope run` with the key that a study compares; empty if it names none."""
    question = planned["compare"]
    return f"--compare {shlex.quote(question['key'])}" if question else ""


def is_due(directory: Path, remeasure: str | None) -> bool:
    """Whether to run an experiment: its last measurement has no results, or is to be repeated."""
    if _must_measure(directory, remeasure) or not (directory / RUN_DONE).exists():
        return True
    tables = layout.tables_directory(directory)
    stages = (COLLECTED, ANALYSED)
    return not all(accounts.is_current(tables, stage, directory) for stage in stages)


def _must_measure(directory: Path, remeasure: str | None) -> bool:
    """Whether to measure again, because of `remeasure` or of an earlier request.

    A request remains until there is a new measurement, so the next call resumes an interrupted one.
    """
    if remeasure == NONE:
        return False
    if remeasure == ALL or attempts.is_requested(directory):
        return True
    return remeasure == INVALID and is_invalid(directory)


def is_invalid(directory: Path) -> bool:
    """Whether the run in a directory was analysed and is not valid, or its records are damaged."""
    if not (directory / RUN_DONE).exists():
        return False  # it is measured in any case
    try:
        if runfile.file_problems(directory, runfile.read_record(directory)):
            return True
    except BadInput:
        return True
    try:
        account = accounts.read(layout.tables_directory(directory), ANALYSED, directory)
    except BadInput:
        return False  # without an account of this measurement it is analysed in any case
    return account.get("valid") is False


def request_forced(dag: Any, planned: Mapping[str, Any], given: Options, results: Path) -> None:
    """Request a new measurement of what the user forced: -F, -R, remeasure.

    Snakemake also forces the incomplete jobs of a killed call; finished runs of these are kept.
    """
    settings = dag.workflow.dag_settings
    named = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
    for job in dag.needrun_jobs():
        if job.rule.name == batches.RULE:
            forced_here = settings.forceall or batches.RULE in named or str(job.output[0]) in named
            for i in _ids(job.wildcards, planned):
                directory = layout.experiment_directory(results, i)
                if forced_here or _must_measure(directory, given.remeasure):
                    attempts.request_again(directory)


def _directories(planned: Mapping[str, Any], results: Path) -> Iterable[Path]:
    return (
        manifest.experiment_path(entry["id"], results).parent for entry in planned["experiments"]
    )
