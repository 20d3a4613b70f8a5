"""The report of a study: its tables, its figures, its page."""

from pathlib import Path

from kvscope.report import style
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import StudyFigure
from kvscope.report.figures.registry import figures_of
from kvscope.report.load import load
from kvscope.report.page import write_page
from kvscope.report.tables import write_tables

PAGE = "report.html"
FIGURES = "figures"


def report(what: list[str], results: Path, out: Path | None) -> Path:
    """Write metrics.parquet, experiments.csv, figures/ and report.html; give the page's path.

    `what` is a planned study's name or runs' directories; `out` is `results`/studies/<study> if
    not given. Raises BadInput if there is no such study or run, or a table is missing or damaged.
    """
    study = load(what, results)
    out = out or results / "studies" / study.name
    figures = figures_of(study)
    write_tables(study, out)
    for figure in figures:
        draw(figure, study, out / FIGURES)
    page = out / PAGE
    write_page(study, figures, results, page)
    return page


def draw(figure: StudyFigure, study: StudyData, directory: Path) -> None:
    """Write a figure as PDF and PNG."""
    with style.style():
        drawn = figure.draw(study)
        if study.modeled:
            style.modeled_label(drawn)
        for suffix in ("pdf", "png"):
            style.save(drawn, directory / f"{figure.name}.{suffix}")
