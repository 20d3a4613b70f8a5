"""What the Snakefile asks: its options, its plan, and what is to be measured again."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope import accounts, layout, runfile
from kvscope.accounts import ANALYSED, COLLECTED
from kvscope.errors import BadInput
from kvscope.plan import manifest
from kvscope.plan.complaints import suggestion
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock_if_free
from kvscope.runfile import RUN_DONE

DEFAULT_STUDY = "quickstart"
OPTIONS = ("study", "overrides", "remeasure")
INVALID, ALL, NONE = "invalid", "all", "none"
RULE = "run_experiment"  # the rule that measures


@dataclass(frozen=True)
class Options:
    """What `--config` may say: a study, overrides on it, and what to measure again."""

    study: str | None
    overrides: tuple[str, ...] = ()
    remeasure: str | None = None


def options(config: Mapping[str, Any]) -> Options:
    """The options of `snakemake --config`; BadInput for a key or a value that is not one.

    Overrides are words in Hydra's grammar, as `kvscope plan` takes them. Without a study they vary
    the defaults; without both, the study is the quickstart.
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
    if given := [word for word in words if word.startswith("study=")]:
        raise BadInput(f"overrides holds {given[0]!r}; write --config {given[0]} overrides=…")
    return words


def plan(given: Options, config_dir: Path, results: Path) -> dict[str, Any]:
    """The study's manifest, made if need be; what a killed process left is put in order first."""
    found = manifest.plan_if_changed(given.study, config_dir, results, given.overrides)
    for directory in _directories(found, results):
        settle_if_free(directory)
    return found


def settle_if_free(directory: Path) -> None:
    """Settle a run's directory, unless there is nothing to settle or a process is at work there."""
    if not runfile.is_settled(directory):
        with hold_lock_if_free(directory, SUPERVISOR_LOCK) as free:
            if free:
                runfile.settle(directory)


def read_plan(given: Options, results: Path) -> dict[str, Any]:
    """The manifest that the main process made."""
    return manifest.read(manifest.name_of(given.study, given.overrides), results)


def settings_of(experiment_id: str, given: Options, results: Path, dag: Any) -> str:
    """What an experiment is measured with, for every target that is made of its measurement.

    Makes Snakemake force, as by its -R, what is to be made again of the experiment although it, or
    what depends on it, is there.
    """
    path = manifest.experiment_path(experiment_id, results)
    if not dag.workflow.is_main_process:
        return str(path)
    if given.remeasure == NONE and not dag.workflow.dryrun and runfile.is_requested(path.parent):
        with hold_lock_if_free(path.parent, SUPERVISOR_LOCK) as free:
            if free:
                runfile.withdraw_request(path.parent)
    dag.forcefiles.update(outputs_to_remake(path.parent, given.remeasure))
    return str(path)


def outputs_to_remake(directory: Path, remeasure: str | None) -> set[str]:
    """The outputs of one experiment that are to be made again."""
    outdated = _first_outdated(directory)
    again = [directory / RUN_DONE] if _must_measure(directory, remeasure) else []
    return {str(path) for path in (outdated, *again) if path}


def _must_measure(directory: Path, remeasure: str | None) -> bool:
    """Whether to measure again: by `remeasure`, or requested before and not done since.

    A request stands until there is a new measurement, so that an interrupted call is resumed by
    the next one.
    """
    if remeasure == NONE:
        return False
    if remeasure == ALL or runfile.is_requested(directory):
        return True
    return remeasure == INVALID and is_invalid(directory)


def _first_outdated(directory: Path) -> Path | None:
    """The first product of an experiment that is not of its last measurement; None if all are.

    Snakemake does not look for files that are missing between files that are there: when a job
    failed, its outputs are gone and those that were made from them before are still there.
    """
    tables = layout.tables_directory(directory)
    if not (directory / RUN_DONE).exists():
        return directory / RUN_DONE if (tables / ANALYSED).exists() else None
    for account in (COLLECTED, ANALYSED):
        if not accounts.is_current(tables, account, directory):
            return tables / account
    return None


def is_invalid(directory: Path) -> bool:
    """Whether the run in a directory was analysed and is not valid, or its records are damaged."""
    if not (directory / RUN_DONE).exists():
        return False  # it is measured anyway
    try:
        if runfile.file_problems(directory, runfile.read_run(directory)):
            return True
    except BadInput:
        return True
    try:
        account = accounts.read(layout.tables_directory(directory), ANALYSED, directory)
    except BadInput:
        return False  # without an account of this measurement it is analysed anyway
    return account.get("valid") is False


def request_forced(dag: Any, given: Options, results: Path) -> None:
    """Request a new measurement of every experiment whose RULE is forced: by -F, -R or remeasure.

    Snakemake forces the jobs of a killed call, too; what these had finished is kept.
    """
    settings = dag.workflow.dag_settings
    named = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
    for job in dag.needrun_jobs():
        if job.rule.name == RULE:
            directory = layout.experiment_directory(results, job.wildcards.id)
            forced_here = settings.forceall or RULE in named or str(job.output[0]) in named
            if forced_here or _must_measure(directory, given.remeasure):
                runfile.request_again(directory)


def _directories(planned: Mapping[str, Any], results: Path) -> Iterable[Path]:
    return (
        manifest.experiment_path(entry["id"], results).parent for entry in planned["experiments"]
    )
