"""Reads what a report is made from: a planned study, or runs given by their directories."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from kvscope import tables
from kvscope.analyse.compare import Analysed, with_study_metrics
from kvscope.errors import BadInput
from kvscope.files import read_json
from kvscope.report import lines
from kvscope.report.data import Run, StudyData
from kvscope.report.differences import varied_settings
from kvscope.report.traits import in_tokens, traits
from kvscope.runfile import COMPLETE, RUN_FILE, read_run, tables_directory

MANIFEST = "manifest.json"
LOG_LINES = 30
LOG_BYTES = 64 * 1024  # the end of a log is read, not gigabytes of it


def load(what: list[str], results: Path) -> StudyData:
    """The study of this name, or the study that runs' directories make.

    BadInput if there is neither, or if a complete run was not analysed.
    """
    if len(what) == 1 and (results / "studies" / what[0] / MANIFEST).exists():
        return load_study(what[0], results)
    missing = [name for name in what if not Path(name).is_dir()]
    if missing:
        known = ", ".join(planned_studies(results)) or "none"
        raise BadInput(
            f"'{missing[0]}' is neither a planned study ({known} in {results / 'studies'}) nor a "
            "run's directory; plan one with `kvscope plan study=NAME --write results`, or give "
            "directories"
        )
    return load_directories([Path(name) for name in what])


def planned_studies(results: Path) -> list[str]:
    """Names of the studies that have a manifest, sorted."""
    return sorted(path.parent.name for path in results.glob(f"studies/*/{MANIFEST}"))


def load_study(name: str, results: Path) -> StudyData:
    """A planned study and whatever was run of it."""
    path = results / "studies" / name / MANIFEST
    manifest = read_json(path)
    try:
        runs = [
            read_one(
                results / "experiments" / entry["id"], entry["id"], entry["label"], entry["varied"]
            )
            for entry in manifest["experiments"]
        ]
        return StudyData(
            name=manifest["study"],
            title=manifest["title"],
            description=manifest["description"],
            keys=tuple(manifest["varied_keys"]),
            figures=tuple(manifest["figures"]),
            runs=together(runs),
        )
    except KeyError as key:
        raise BadInput(f"{path}: key {key} is missing; plan the study again") from None


def load_directories(directories: list[Path]) -> StudyData:
    """The study that these runs make: what varies is what differs between them."""
    for directory in directories:
        if not (directory / RUN_FILE).exists():
            raise BadInput(f"{directory}: no {RUN_FILE} in it, so it is no run's directory")
    unique = {directory.resolve(): directory for directory in directories}
    settings = [read_settings(directory) for directory in unique.values()]
    varied = varied_settings(settings)
    ids = [read_run(directory)["experiment_id"] for directory in unique.values()]
    runs = [
        read_one(directory, run_id, run_id, row)
        for directory, run_id, row in zip(unique.values(), ids, varied, strict=True)
    ]
    digest = hashlib.sha256("\n".join(sorted(map(str, unique))).encode()).hexdigest()[:8]
    return StudyData(
        name=ids[0] if len(runs) == 1 else f"runs-{digest}",
        title=ids[0] if len(runs) == 1 else f"{len(runs)} runs compared",
        description="",
        keys=tuple(varied[0]),
        runs=together(runs),
        planned=False,
    )


def together(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of one study: named by what sets them apart, with the study's metrics added."""
    analysed = [Analysed(run.settings, run.metrics) for run in runs if run.metrics is not None]
    extended = iter(with_study_metrics(analysed))
    return tuple(
        replace(run, label=name, metrics=None if run.metrics is None else next(extended))
        for run, name in zip(runs, names(runs), strict=True)
    )


def names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run: its traits, or the label it has where others have the same."""
    told, _ = lines.names(traits(in_tokens([run.varied for run in runs])))
    count = Counter(told)
    return [
        name if name and count[name] == 1 else run.label
        for run, name in zip(runs, told, strict=True)
    ]


def read_one(directory: Path, run_id: str, label: str, varied: dict[str, Any]) -> Run:
    """One experiment: what is there of it."""
    ran = (directory / RUN_FILE).exists()
    facts = read_run(directory) if ran else {}
    complete = facts.get("status") == COMPLETE
    below = tables_directory(directory)
    return Run(
        id=run_id,
        label=label,
        varied=varied,
        directory=directory,
        tables_directory=below,
        facts=facts,
        settings=read_settings(directory),
        metrics=read_metrics(directory, below) if complete else None,
        log_tail="" if complete else tail(directory / "log.txt"),
    )


def read_settings(directory: Path) -> dict[str, Any]:
    """The run's experiment.yaml, empty if there is none."""
    path = directory / "experiment.yaml"
    if not path.exists():
        return {}
    try:
        settings = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    return dict(settings)


def read_metrics(run: Path, directory: Path) -> pd.DataFrame:
    """A complete run's metrics, indexed by name.

    A complete run without them is an error, not a gap: a page that left it out would look whole.
    """
    path = directory / f"{tables.METRICS.name}.parquet"
    if not path.exists():
        raise BadInput(f"{path}: no such file; make it with `kvscope analyse {run}`")
    return tables.read(tables.METRICS, path).set_index("metric", drop=False)


def tail(path: Path) -> str:
    """The last lines of a log, empty if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(_last(text.splitlines(), LOG_LINES))


def _last(lines: Iterable[str], count: int) -> list[str]:
    kept = [line.rstrip() for line in lines]
    while kept and not kept[-1]:
        kept.pop()
    return kept[-count:]
