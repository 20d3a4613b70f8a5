"""The report of a study: its tables, its figures, its page."""

from collections.abc import Mapping
from pathlib import Path

from kvscope.base.files import make_directory, remove, remove_temporaries
from kvscope.base.layout import CRATE_FILE, UNFINISHED, study_directory
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.figures.registry import drawings
from kvscope.report.load import load
from kvscope.report.page import write_page
from kvscope.report.pages import pages, pages_of
from kvscope.report.render import print_figures
from kvscope.report.tables import STUDY_FILES, write_tables

PAGE = "report.html"
FIGURES = "figures"


def report(what: list[str], results: Path, out: Path | None) -> Path:
    """Write the report of a planned study or of runs' directories (see `load`, `write_report`)."""
    study = load(what, results)
    return write_report(study, drawings(study), results, out)


def write_report(
    study: StudyData, drawn: Mapping[str, Drawing], results: Path, out: Path | None
) -> Path:
    """Write the study's tables, figures/ and report.html; give the page's path.

    Beside them stand the further pages that installed packages have for the study.

    They go to `out`, or to `results`/studies/<study>. Those of a planned study that is not finished
    go to unfinished/ in there, and the page of an earlier state goes: a page that stands where the
    workflow wants it is the page of the whole study.
    """
    home = out or study_directory(results, study.name)
    whole = study.finished or not study.planned
    place = home if whole else home / UNFINISHED
    make_directory(home)
    remove_temporaries(home)
    remove_temporaries(home / FIGURES)
    remove(home / UNFINISHED)
    remove(home / CRATE_FILE)  # it described the files of before
    if not whole:
        retire(home)
    write_tables(study, place)
    prints = print_figures(drawn)
    for name, one in prints.items():
        one.write(place / FIGURES, name)
    page = place / PAGE
    write_page(study, drawn, prints, results, page)
    for further in pages_of(study):
        further.write(study, place)
    return page


def retire(home: Path) -> None:
    """Remove what an earlier report wrote of a study, since it is true no longer."""
    for name in (PAGE, FIGURES, *STUDY_FILES):
        remove(home / name)
    for further in pages():
        further.retire(home)
