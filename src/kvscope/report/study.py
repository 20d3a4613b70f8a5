"""The report of a study: its tables, its figures, its page."""

from pathlib import Path

from kvscope.base.files import make_directory, remove, remove_temporaries
from kvscope.base.layout import CRATE_FILE, UNFINISHED
from kvscope.report.load import load
from kvscope.report.page import PAGE, write_page
from kvscope.report.pages import pages, pages_of
from kvscope.report.section import Report, sections

FIGURES = "figures"


def report(what: list[str], results: Path, out: Path | None) -> Path:
    """Write the report of a planned study or of runs' directories (see `load`, `write_report`)."""
    return write_report(Report(load(what, results), results, out))


def write_report(report: Report) -> Path:
    """Write the study's tables, figures/ and report.html; give the page's path.

    Beside them stand the further pages that installed packages have for the study. Of a study that
    is not finished, the page of an earlier state goes.
    """
    home, place = report.home, report.place
    make_directory(home)
    remove_temporaries(home)
    remove_temporaries(home / FIGURES)
    remove(home / UNFINISHED)
    remove(home / CRATE_FILE)  # it described the files of before
    if not report.whole:
        retire(home)
    parts = sections()
    for section in parts.values():
        section.write_tables(report.study, place)
    for name, printed in report.prints.items():
        printed.write(place / FIGURES, name)
    page = write_page(report, parts)
    for further in pages_of(report.study):
        further.write(report.study, place)
    return page


def retire(home: Path) -> None:
    """Remove what an earlier report wrote of a study, since it is true no longer."""
    of_sections = (name for section in sections().values() for name in section.tables)
    for name in (PAGE, FIGURES, *of_sections):
        remove(home / name)
    for further in pages():
        further.retire(home)
