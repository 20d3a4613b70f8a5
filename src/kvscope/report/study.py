"""The report of a study: its tables, its figures, its page."""

from pathlib import Path

from kvscope.files import make_directory, remove, remove_temporaries
from kvscope.report import style
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import StudyFigure
from kvscope.report.figures.registry import figures_of
from kvscope.report.load import load
from kvscope.report.page import write_page
from kvscope.report.tables import EXPERIMENTS_FILE, METRICS_FILE, write_tables

PAGE = "report.html"
FIGURES = "figures"
UNFINISHED = "unfinished"


def report(what: list[str], results: Path, out: Path | None) -> Path:
    """Write the report of a planned study or of runs' directories (see `load`, `write_report`)."""
    return write_report(load(what, results), results, out)


def write_report(study: StudyData, results: Path, out: Path | None) -> Path:
    """Write metrics.parquet, experiments.csv, figures/ and report.html; give the page's path.

    They go to `out`, or to `results`/studies/<study>. Those of a planned study that is not finished
    go to unfinished/ in there, and the page of an earlier state goes: a page that stands where the
    workflow wants it is the page of the whole study.
    """
    home = out or results / "studies" / study.name
    figures = figures_of(study)
    whole = study.finished or not study.planned
    place = home if whole else home / UNFINISHED
    make_directory(home)
    remove_temporaries(home)
    remove_temporaries(home / FIGURES)
    remove(home / UNFINISHED)
    if not whole:
        retire(home)
    write_tables(study, place)
    for figure in figures:
        draw(figure, study, place / FIGURES)
    page = place / PAGE
    write_page(study, figures, results, page)
    return page


def retire(home: Path) -> None:
    """Remove what an earlier report wrote of a study, since it is true no longer."""
    for name in (PAGE, METRICS_FILE, EXPERIMENTS_FILE, FIGURES):
        remove(home / name)


def draw(figure: StudyFigure, study: StudyData, directory: Path) -> None:
    """Write a figure as PDF and PNG."""
    with style.style():
        drawn = figure.draw(study)
        if study.modeled:
            style.modeled_label(drawn)
        for suffix in ("pdf", "png"):
            style.save(drawn, directory / f"{figure.name}.{suffix}")
