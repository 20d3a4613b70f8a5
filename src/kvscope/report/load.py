"""Reads what a report is made from: a planned study, or runs given by their directories."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.base.layout import experiment_directory
from kvscope.base.quantities import plural
from kvscope.base.reading import open_file
from kvscope.base.time_sources import time_source_of
from kvscope.judge.checklist import read_verdicts
from kvscope.judge.records import Records
from kvscope.metrics.study import add_study_metrics
from kvscope.plan import experiment, levels, manifest, pairs, traits
from kvscope.plan.complaints import validation_message
from kvscope.plan.fields import Part
from kvscope.plan.figures import Axes
from kvscope.plan.question import Question
from kvscope.plan.traits import Compared
from kvscope.report.data import (
    DAMAGED,
    INTERRUPTED,
    NOT_ANALYSED,
    NOT_RUN,
    RUNNING,
    STALE,
    FigureRequest,
    ReportedRun,
    StudyData,
    labels,
)
from kvscope.report.recent import RecentRecords
from kvscope.report.validity import invalidate_differing
from kvscope.tables import accounts, attempts, results, runfile
from kvscope.tables.accounts import ANALYSED, COLLECTED
from kvscope.tables.runfile import FAILED, RUN_FILE, read_record

P = TypeVar("P", bound=Part)
SECTIONS = (
    *("model", "device", "engine", "workload", "batching", "overflow", "cache"),
    *("tracing", "profiler"),
)
READ = RecentRecords(Records)
LOG_LINES = 30
LOG_BYTES = 64 * 1024  # the end of a log is read, not gigabytes of it


def load(what: list[str], place: Path) -> StudyData:
    """A planned study of the results in `place`, or a study of the runs in these directories.

    A word with a slash in it is a directory, also where a study has the same name. BadInput if
    there is neither.
    """
    studies = results.studies(place)
    if len(what) == 1 and "/" not in what[0] and what[0] in studies:
        return load_study(what[0], place)
    missing = [name for name in what if not Path(name).is_dir()]
    if len(what) > 1 and any(name in studies for name in missing):
        raise BadInput(
            "either one study can be given or runs' directories, not several studies "
            f"({' '.join(what)})"
        )
    if missing:
        planned = ", ".join(studies) or "none"
        raise BadInput(
            f"'{missing[0]}' is neither a planned study ({planned} in {place / 'studies'}) nor a "
            "run's directory; plan one with `kvscope plan study=NAME --write results`, or give "
            "directories"
        )
    return load_directories([Path(name) for name in what])


def load_study(name: str, place: Path) -> StudyData:
    """A planned study and whatever was run of it."""
    plan = manifest.read(name, place)
    names: dict[str, dict[Any, str]] = defaultdict(dict)
    for entry in plan.get("levels", []):
        names[entry["key"]][entry["value"]] = entry["name"]
    runs = [
        load_run(
            experiment_directory(place, run_id), run_id, label, levels.named(varied, names), grid
        )
        for run_id, label, varied, grid in map(
            itemgetter("id", "label", "varied", "grid"), plan["experiments"]
        )
    ]
    compared = pairs.read(plan, manifest.manifest_path(name, place))
    return StudyData(
        name=name,
        title=plan["title"],
        description=plan["description"],
        keys=tuple(plan["varied_keys"]),
        figures=tuple(
            FigureRequest(entry["name"], tuple(_part(Axes, axes, name) for axes in entry["axes"]))
            for entry in plan["figures"]
        ),
        question=plan["compare"] and _part(Question, plan["compare"], name),
        runs=add_comparisons(runs, compared),
        compared=compared,
        base=plan["base"],
        overrides=tuple(plan["overrides"]),
    )


def _part(kind: type[P], group: dict[str, Any], study: str) -> P:
    """A group of keys of a study's manifest as the part that it describes."""
    try:
        return kind.model_validate(group)
    except ValidationError as error:
        where = f"the manifest of {study}: plan it again"
        raise validation_message(kind, error, lambda _: where, group) from None


def load_directories(directories: list[Path]) -> StudyData:
    """The study that these runs make: what varies is what differs between them."""
    for directory in directories:
        runfile.require_collected(directory)
        if not any((directory / name).exists() for name in (RUN_FILE, runfile.EXPERIMENT_FILE)):
            raise BadInput(
                f"{directory}: holds neither {RUN_FILE} nor {runfile.EXPERIMENT_FILE}, so it is no "
                "run's directory"
            )
    unique = {directory.resolve(): directory for directory in directories}
    ids = [experiment_id_of(directory) for directory in unique.values()]
    loaded = [load_run(*named, named[1], {}) for named in zip(unique.values(), ids, strict=True)]
    varied = traits.varied_settings([run.settings for run in loaded])
    runs = [replace(run, varied=row) for run, row in zip(loaded, varied, strict=True)]
    compared = pairs.compare(ids, varied, ids)
    digest = hashlib.sha256("\n".join(sorted(map(str, unique))).encode()).hexdigest()[:8]
    return StudyData(
        name=ids[0] if len(runs) == 1 else f"runs-{digest}",
        title=ids[0] if len(runs) == 1 else f"{len(runs)} runs compared",
        description="",
        keys=tuple(varied[0]),
        runs=add_comparisons(runs, compared),
        compared=compared,
        planned=False,
    )


def experiment_id_of(directory: Path) -> str:
    """Id of the experiment in a directory: by its record, else by the directory's name."""
    try:
        return read_record(directory).experiment_id
    except BadInput:
        return directory.resolve().name


def add_comparisons(runs: Sequence[ReportedRun], compared: Compared) -> tuple[ReportedRun, ...]:
    """The runs of a study with their labels and with what they show beside one another.

    Times are adjusted for waiting, and the study's metrics added.
    """
    runs = invalidate_differing(runs)
    extended = iter(add_study_metrics([measured for run in runs if (measured := run.as_measured)]))
    names = labels(runs, compared)
    return tuple(
        run.changed(label=names[run.id], metrics=None if run.metrics is None else next(extended))
        for run in runs
    )


def load_run(
    directory: Path, run_id: str, label: str, varied: dict[str, Any], grid: str = ""
) -> ReportedRun:
    """An experiment with all that is readable of it, and why no more is.

    Nothing is shown that is damaged, or that was made from another measurement.
    """
    settings = {key: traits.single(value) for key, value in varied.items()}
    again = remeasurement(directory)
    run = ReportedRun(run_id, label, settings, directory, grid=grid, again=again, reader=READ)
    try:
        run = replace(run, settings=read_settings(directory))
        if not (directory / RUN_FILE).exists():
            return _without_record(run)
        run = replace(run, record=read_record(directory))
        if (other := run.record.experiment_id) != run.id:
            raise BadInput(f"{directory / RUN_FILE}: is the record of another experiment, {other}")
        if not run.record.complete:
            if attempts.is_under_way(directory):
                return _running(run)
            return _without_results(run, FAILED, run.record.why_failed)
        if problems := runfile.file_problems(directory, run.record):
            raise BadInput(problems[0])
    except BadInput as error:
        return _without_results(run, DAMAGED, str(error))
    return with_metrics(run)


def with_metrics(run: ReportedRun) -> ReportedRun:
    """The complete run with its metrics, if they and its KV events are of this measurement."""
    records = Records(run.directory, record=run.record, settings=run.settings)
    below = records.tables_directory
    try:
        if run.record.tracing:
            collected = records.account(COLLECTED)
            accounts.require_unchanged(below, collected, tables.KV_EVENTS.file)
        metrics, analysed = records.metrics, records.account(ANALYSED)
        repeats = records.repeat_metrics if run.in_rounds else None
        source = records.time_source
    except accounts.StaleResult as error:
        return _without_results(run, STALE, str(error))
    except BadInput as error:
        stage = COLLECTED if run.record.tracing else ANALYSED
        has_metrics = (below / stage).exists() and (below / ANALYSED).exists()
        return _without_results(run, DAMAGED if has_metrics else NOT_ANALYSED, str(error))
    loaded = replace(
        run,
        metrics=metrics.set_index("metric", drop=False).assign(time_source=source),
        repeat_metrics=repeats,
        doubts=_in_figures(analysed["reasons"]),
        circumstances=_in_figures(analysed.get("circumstances", [])),
        verdicts=tuple(read_verdicts(analysed)),
    )
    return loaded.known_source(time_source_of(source, records.table_sources))


def _in_figures(named: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """'name (detail)' of each entry."""
    return tuple(f"{entry['name']} ({entry['detail']})" for entry in named)


def remeasurement(directory: Path) -> str:
    """Status of a requested re-measurement; '' if no request is pending."""
    attempt = directory / attempts.ATTEMPT
    if not attempts.is_requested(directory):
        return ""
    if attempts.is_under_way(directory):
        return "is being measured again"
    if (attempt / RUN_FILE).exists():
        try:
            return f"measuring it again failed: {read_record(attempt).reason}"
        except BadInput as error:
            return f"measuring it again failed: {error}"
    return "is to be measured again"


def _without_record(run: ReportedRun) -> ReportedRun:
    """An experiment without run.json: it runs, it never ran, or it was ended from outside."""
    if attempts.is_under_way(run.directory):
        return _running(run)
    if (run.directory / attempts.ATTEMPT).exists():
        why = "it was ended from outside before it was complete"
        return _without_results(run, INTERRUPTED, why)
    return _without_results(run, NOT_RUN, "")


def _running(run: ReportedRun) -> ReportedRun:
    """An experiment that is being measured, with the number of its finished repeats."""
    session = run.directory / attempts.ATTEMPT / runfile.SESSION_FILE
    done = len(read_json(session)["clock"]["repeats"]) if session.exists() else 0
    return _without_results(run, RUNNING, f"{plural(done, 'repeat')} so far" if done else "")


def _without_results(run: ReportedRun, status: str, why: str) -> ReportedRun:
    log = log_of(run, status)
    return replace(run, status=status, failure=why, log=log, log_tail=tail(log))


def log_of(run: ReportedRun, status: str) -> Path:
    """The log that may say why a run has no results."""
    if status in (NOT_ANALYSED, STALE):
        for name in ("analyse.log", "collect.log"):
            log = run.records.tables_directory / name
            if log.exists() and log.stat().st_size:
                return log
    return attempts.log_path(run.directory)


def read_settings(directory: Path) -> dict[str, Any]:
    """The run's experiment.yaml; empty without that file."""
    settings = experiment.read_settings(directory)
    for section in SECTIONS:
        if not isinstance(settings.get(section, {}), dict):
            path = directory / runfile.EXPERIMENT_FILE
            raise BadInput(f"{path}: {section} must be a group of keys")
    return settings


def tail(path: Path) -> str:
    """The last lines of a log; empty if the log cannot be read."""
    try:
        with open_file(path) as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode(errors="replace")
    except BadInput:
        return ""
    return "\n".join(_last(text.splitlines(), LOG_LINES))


def _last(lines: Iterable[str], count: int) -> list[str]:
    stripped = [line.rstrip() for line in lines]
    while stripped and not stripped[-1]:
        stripped.pop()
    return stripped[-count:]
