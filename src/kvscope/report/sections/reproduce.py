"""Commands that make the study again, and the places of its data."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.pages import pages_of
from kvscope.report.paper import PAPER
from kvscope.report.section import Report, Section

# So many experiments have their commands listed; the others' differ in the id only.
COMMANDS = 3


def _context(report: Report) -> Mapping[str, Any]:
    return {
        "commands": commands(report.study, report.results),
        "paper": PAPER.citation,
        "places": [(content, str(path), report.link(path)) for content, path in _places(report)],
    }


def commands(study: StudyData, results: Path) -> list[str]:
    """Commands that make the study again, one a line; paths as given to `kvscope report`."""
    usual = study.planned and results == Path("results")
    lines = []
    if study.planned:
        if usual:
            lines.append(f"snakemake --profile profiles/local --config {study.options}")
            lines.append("# or, by hand:")
        words = [f"study={study.base}"] if study.base else []
        words = [*words, *study.overrides] if study.overrides else [f"study={study.name}"]
        lines.append(f"kvscope plan {shlex.join(words)} --write {results}")
    for run in study.runs[:COMMANDS]:
        lines += [*origin(run, usual), f"kvscope analyse {run.directory}"]
    if len(study.runs) > COMMANDS:
        lines.append(f"# … and so on for the other {len(study.runs) - COMMANDS}")
    target = study.name if study.planned else " ".join(str(run.directory) for run in study.runs)
    return [*lines, f"kvscope report {target}{'' if usual else f' --results {results}'}"]


def origin(run: ReportedRun, usual: bool) -> list[str]:
    """The commands that make a run's directory; `usual` if a planned run goes there."""
    if source := run.record.imported_from:
        files = " ".join(entry.file for entry in source.files)
        series = f" --series {source.series}" if source.series else ""
        return [f"kvscope import {source.kind} {files}{series} --out {run.directory}"]
    if run.record.recorded:
        return [f"kvscope collect {run.directory}"]
    out = "" if usual else f" --out {run.directory}"
    return [
        f"kvscope run {run.directory / 'experiment.yaml'}{out}",
        f"kvscope collect {run.directory}",
    ]


def _places(report: Report) -> list[tuple[str, Path]]:
    """Kinds of data with their paths."""
    study, place = report.study, report.place
    places = [
        ("this study's metrics", place / "metrics.parquet"),
        ("one row an experiment", place / "experiments.csv"),
        ("the ratios of what is compared", place / "comparisons.csv"),
        ("figures for print", place / "figures"),
    ]
    for page in pages_of(study):
        files = {page.file: page.title, **page.tables}
        places = [*((content, place / name) for name, content in files.items()), *places]
    if study.planned:
        places += [
            ("records of each run", report.results / "experiments"),
            ("collected tables and metrics of each run", report.results / "tables"),
        ]
    else:
        places += [(f"records of {run.label}", run.directory) for run in study.runs]
    return places


SECTION = Section(
    "Reproduce", Path(__file__).with_suffix(".html.j2"), _context, order=1000, marked=False
)
