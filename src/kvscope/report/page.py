"""The page of a study: one self-contained HTML file."""

import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from markupsafe import Markup

import kvscope
from kvscope.base.files import write_text
from kvscope.base.quantities import plural
from kvscope.report import conditions as machine
from kvscope.report import sections, theme
from kvscope.report.circumstances import circumstances, dates, faults, shared
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.figures.registry import blamed, figures, missing_figures, unshown_data
from kvscope.report.findings import by_change, findings, headline, rule
from kvscope.report.pages import load_template, pages_of
from kvscope.report.paper import PAPER
from kvscope.report.reasons import reason_in_words
from kvscope.report.render import Printed, for_page, pack, print_figure, scripts
from kvscope.report.tables import experiments_table
from kvscope.report.validity import checklist, verdict
from kvscope.tables.runfile import PERFETTO

HERE = Path(__file__).parent
TEMPLATE = "report.html.j2"
SCRIPTS = ("address.js", "charts.js", "table.js")
STYLES, CLOSING = "report.css", "closing.css"  # sections have theirs between these
TIMELINES = "step_timeline"
# So many experiments have their commands listed; the others' differ in the id only.
COMMANDS = 3


def write_page(
    study: StudyData,
    drawn: Mapping[str, Drawing],
    prints: Mapping[str, Printed],
    results: Path,
    path: Path,
) -> None:
    """Write the page to `path`; links to other results are relative to it."""
    timelines = drawn.get(TIMELINES)
    lead, table = headline(study), experiments_table(study)
    filters: dict[str, Callable[..., Any]] = {
        "plural": plural,
        "in_words": reason_in_words,
        "by_change": by_change,
    }
    template = load_template(HERE / TEMPLATE, **filters)
    html = template.render(
        study=study,
        caveats=machine.caveats(study),
        verdict=verdict(study),
        dates=dates(study),
        version=kvscope.__version__,
        headline=lead.sentence,
        headline_rule=rule(study),
        lead=_apart("lead", lead.title, "", lead.drawing),
        findings=findings(study),
        missed=machine.missed_widths(study),
        conditions=machine.conditions(study),
        conditions_chart=_apart("conditions", machine.TITLE, machine.CAPTION, machine.draw(study)),
        circumstances=circumstances(study),
        faults=faults(study),
        shared=shared(study),
        table=table,
        differences=_safe(orjson.dumps(table.differences).decode()),
        followed={view.choice[0] for view in timelines.views} if timelines else set(),
        traces=_traces(study, path.parent),
        unfinished=[run for run in study.runs if not run.complete],
        failed=[run for run in study.runs if not run.complete and run.failure],
        doubtful=[run for run in study.complete if not run.valid],
        again=[run for run in study.complete if run.again],
        reasons=_reasons(study),
        checklist=checklist(study.complete),
        figures=[_figure(study, name, drawing, prints[name]) for name, drawing in drawn.items()],
        sections=sections.shown_sections(study),
        lacking=[*missing_figures(study, drawn), *unshown_data(study)],
        configs=_safe(orjson.dumps([theme.config(), theme.config(dark=True)]).decode()),
        commands=_commands(study, results),
        paper=PAPER.citation,
        pages=pages_of(study),
        places=_places(study, results, path),
        styles=Markup("\n").join(map(_read, (HERE / STYLES, *sections.styles(), HERE / CLOSING))),
        vega=pack(scripts()),
        scripts=[*map(_read, (HERE / name for name in SCRIPTS)), *map(_read, sections.scripts())],
    )
    write_text(path, html)


def _read(path: Path) -> Markup:
    """A style sheet or a script as it is."""
    return Markup(path.read_text(encoding="utf-8"))


def _figure(study: StudyData, name: str, drawing: Drawing, printed: Printed) -> dict[str, Any]:
    """Template context for one figure."""
    of = figures()[name]
    chart = _chart(name, of.title, of.caption, drawing, printed)
    return chart | {"section": of.section, "body": partial(_body, study, name)}


def _body(study: StudyData, name: str, chart: Markup) -> Markup:
    """HTML of a figure's own section, with its chart."""
    body = figures()[name].body
    if body is None:
        return chart
    with blamed(name):
        template = load_template(body.template, plural=plural)
        return Markup(template.render(chart=chart, **body.context(study)))


def _chart(
    name: str, title: str, caption: str, drawing: Drawing, printed: Printed
) -> dict[str, Any]:
    """Template context for one chart."""
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "headings": drawing.headings if len(drawing.views) > 1 else (),
        "data": pack(for_page(drawing)),
        "image": Markup(printed.url),
    }


def _apart(name: str, title: str, caption: str, drawing: Drawing | None) -> dict[str, Any] | None:
    """A chart that stands apart from the figures, if there is one."""
    return _chart(name, title, caption, drawing, print_figure(drawing)) if drawing else None


def _reasons(study: StudyData) -> list[str]:
    """The validity reasons that occur, each once."""
    return list(dict.fromkeys(name for run in study.complete for name in run.reasons))


def _commands(study: StudyData, results: Path) -> list[str]:
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
        lines += [*_origin(run, usual), f"kvscope analyse {run.directory}"]
    if len(study.runs) > COMMANDS:
        lines.append(f"# … and so on for the other {len(study.runs) - COMMANDS}")
    what = study.name if study.planned else " ".join(str(run.directory) for run in study.runs)
    return [*lines, f"kvscope report {what}{'' if usual else f' --results {results}'}"]


def _origin(run: ReportedRun, usual: bool) -> list[str]:
    """The commands that make a run's directory."""
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


def _places(study: StudyData, results: Path, path: Path) -> list[tuple[str, str, str]]:
    """Where the data lie: what, path, and the path relative to the page."""
    below = path.parent
    places = [
        ("this study's metrics", below / "metrics.parquet"),
        ("one row an experiment", below / "experiments.csv"),
        ("the ratios of what is compared", below / "comparisons.csv"),
        ("figures for print", below / "figures"),
    ]
    for page in pages_of(study):
        files = {page.file: page.title, **page.tables}
        places = [*((what, below / name) for name, what in files.items()), *places]
    if study.planned:
        places += [
            ("records of each run", results / "experiments"),
            ("collected tables and metrics of each run", results / "tables"),
        ]
    else:
        places += [(f"records of {run.label}", run.directory) for run in study.runs]
    return [(what, str(place), _relative(place, below)) for what, place in places]


def _traces(study: StudyData, start: Path) -> dict[str, str]:
    """Where the traces for Perfetto lie, relative to the page, by the experiments' ids."""
    paths = {run.id: run.records.tables_directory / PERFETTO for run in study.runs}
    return {name: _relative(path, start) for name, path in paths.items() if path.is_file()}


def _relative(place: Path, start: Path) -> str:
    return Path(os.path.relpath(place.resolve(), start.resolve())).as_posix()


def _safe(json: str) -> Markup:
    """JSON that cannot end the script element it stands in."""
    return Markup(json.replace("<", "\\u003c").replace("\u2028", "\\u2028"))
