"""The page of a study: one HTML file that needs nothing else, not even a network."""

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import kvscope
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.study_metrics import STUDY_METRICS
from kvscope.files import write_text
from kvscope.paper import PAPER
from kvscope.report import style
from kvscope.report.access import accesses
from kvscope.report.arrangements import Arrangement, View
from kvscope.report.checks import checklist
from kvscope.report.circumstances import circumstances, dates, faults, shared
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.access_pattern import traced as with_events
from kvscope.report.figures.figure import Chart, StudyFigure
from kvscope.report.figures.registry import lacking
from kvscope.report.findings import findings
from kvscope.report.summary import verdict
from kvscope.report.tables import main_columns
from kvscope.report.timelines import MOST_PASSES_A_REPEAT, timelines
from kvscope.report.traits import Settings
from kvscope.report.words import (
    Shown,
    estimate_text,
    key_title,
    plural,
    reason_in_words,
    value_words,
)
from kvscope.runfile import IMPORTED_FROM

HERE = Path(__file__).parent
TEMPLATE = "report.html.j2"
SCRIPTS = ("charts.js", "timeline.js", "access.js", "table.js", "page.js")
NAMES = [*(metric.name for metric in METRICS), *(metric.name for metric in STUDY_METRICS)]
# So many experiments have their commands listed; the others' differ in the id only.
COMMANDS = 3


def write_page(study: StudyData, figures: Sequence[StudyFigure], results: Path, path: Path) -> None:
    """Write the page to `path`; links to other results are relative to it."""
    write_text(path, render(study, figures, results, path))


def render(study: StudyData, figures: Sequence[StudyFigure], results: Path, path: Path) -> str:
    """The page's HTML."""
    traced, columns = timelines(study), main_columns(study)
    keys = list(dict.fromkeys(key for traits in study.traits.values() for key in traits))
    charts = {figure.name: figure.chart(study) for figure in figures}
    accessed = accesses(with_events(study))
    return _template().render(
        study=study,
        verdict=verdict(study),
        dates=dates(study),
        version=kvscope.__version__,
        findings=findings(study),
        circumstances=circumstances(study),
        faults=faults(study),
        shared=shared(study),
        columns=columns,
        key_titles=[key_title(key) for key in keys],
        rows=[
            _row(run, study.traits[run.id], keys, columns, run.id in traced) for run in study.runs
        ],
        unfinished=[run for run in study.runs if not run.complete],
        again=[run for run in study.complete if run.again],
        reasons=_reasons(study),
        checklist=checklist(study.complete),
        figures=[
            {"figure": figure, "shown": charts[figure.name] is not None} for figure in figures
        ],
        lacking=lacking(study, figures),
        timelines={run_id: _json(one) for run_id, one in traced.items()},
        untraced=len(study.complete) - len(traced),
        merged=any(repeat["merged"] > 1 for one in traced.values() for repeat in one["repeats"]),
        most_passes=MOST_PASSES_A_REPEAT,
        accesses={run_id: _json(one) for run_id, one in accessed.items()},
        unshown=len(with_events(study)) - len(accessed),
        data=_json(page_data(study, charts)),
        commands=_commands(study, results),
        paper=PAPER.citation,
        places=_places(study, results, path),
        plotly=Markup(get_plotlyjs()),
        styles=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        scripts=[Markup((HERE / name).read_text(encoding="utf-8")) for name in SCRIPTS],
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"plural": plural, "in_words": reason_in_words}
    return environment.get_template(TEMPLATE)


def page_data(study: StudyData, charts: Mapping[str, Chart]) -> dict[str, Any]:
    """What the page's charts are drawn from; numbers in the units of the tables.

    Arrangements are listed once, and charts name them by their place in the list.
    """
    pool: dict[Arrangement, int] = {}
    drawn = {name: _with_places(chart, pool) for name, chart in charts.items()}
    return {
        "experiments": [
            {"id": run.id, "label": run.label, "valid": run.valid, "reasons": run.reasons}
            for run in study.runs
        ],
        "metrics": {
            name: {
                "value": [_finite(run.number(name).value) for run in study.runs],
                "low": [_finite(run.number(name).low) for run in study.runs],
                "high": [_finite(run.number(name).high) for run in study.runs],
                "believed": [run.believed(name) for run in study.runs],
            }
            for name in NAMES
        },
        "arrangements": [asdict(one) | {"across": one.across} for one in pool],
        "charts": drawn,
        "modeled": study.modeled,
        "palette": style.PALETTE,
        "colours": style.NAMED,
    }


def _with_places(chart: Chart, pool: dict[Arrangement, int]) -> Chart:
    """The chart with its views' arrangements as places in the pool, which takes up new ones."""
    if chart is None or "views" not in chart:
        return chart
    found: list[View] = chart["views"]
    views = [
        {
            "title": view.title,
            "places": [pool.setdefault(one, len(pool)) for one in view.arrangements],
            "left_out": view.left_out,
        }
        for view in found
    ]
    return chart | {"views": views}


def _row(
    run: Run, traits: Settings, keys: Sequence[str], columns: Sequence[Shown], traced: bool
) -> dict[str, Any]:
    """One line of the table of experiments, as text, with what it is sorted by."""
    cells = []
    for shown in columns:
        number = run.number(shown.metric)
        value, half = estimate_text(number, shown)
        cells.append({"value": value, "half": half, "sort": _finite(number.value)})
    return {
        "run": run,
        "traced": traced,
        "varied": [
            {"text": value_words(value), "sort": value if _is_number(value) else None}
            for value in map(traits.get, keys)
        ],
        "cells": cells,
    }


def _reasons(study: StudyData) -> list[str]:
    """The validity reasons that occur, each once."""
    return list(dict.fromkeys(name for run in study.complete for name in run.reasons))


def _commands(study: StudyData, results: Path) -> list[str]:
    """What makes the study again, a command a line; paths as given to `kvscope report`."""
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
        lines += [*_origin(run, usual), f"kvscope analyse {run.directory}"]
    if len(study.runs) > COMMANDS:
        lines.append(f"# … and so on for the other {len(study.runs) - COMMANDS}")
    what = study.name if study.planned else " ".join(str(run.directory) for run in study.runs)
    return [*lines, f"kvscope report {what}{'' if usual else f' --results {results}'}"]


def _origin(run: Run, usual: bool) -> list[str]:
    """The commands that make a run's directory."""
    if source := run.facts.get(IMPORTED_FROM):
        files = " ".join(entry["file"] for entry in source["files"])
        series = f" --series {source['series']}" if source["series"] else ""
        return [f"kvscope import {source['kind']} {files}{series} --out {run.directory}"]
    out = "" if usual else f" --out {run.directory}"
    return [
        f"kvscope run {run.directory / 'experiment.yaml'}{out}",
        f"kvscope collect {run.directory}",
    ]


def _places(study: StudyData, results: Path, path: Path) -> list[tuple[str, str, str]]:
    """Where the data lie: what, path, and the path relative to the page."""
    below = path.parent
    places = [
        ("this study's metrics", below / "metrics.parquet"),
        ("one row an experiment", below / "experiments.csv"),
        ("figures for print", below / "figures"),
    ]
    if study.planned:
        places += [
            ("records of each run", results / "experiments"),
            ("collected tables and metrics of each run", results / "tables"),
        ]
    else:
        places += [(f"records of {run.label}", run.directory) for run in study.runs]
    return [(what, str(place), _relative(place, below)) for what, place in places]


def _relative(place: Path, start: Path) -> str:
    return Path(os.path.relpath(place.resolve(), start.resolve())).as_posix()


def _json(value: Any) -> Markup:
    """Compact JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
