"""Pages: their template, and further pages that packages write beside report.html.

A package registers a `Page` in the entry-point group `kvscope.page`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from kvscope.base import plugins
from kvscope.base.files import remove
from kvscope.report.data import StudyData

GROUP = "kvscope.page"


@dataclass(frozen=True)
class Page:
    """A page, `file`, and what belongs to it.

    report.html links to it by `title`, with the sentence `summary`. `fits` says whether a study has
    the page at all. `write` writes the page, its tables and `directories` into a directory, or
    nothing if no experiment has results for it. `write_tables` writes the `tables` alone, which
    `kvscope check` compares with those that are there: CSV or Parquet, and what each file holds.
    """

    file: str
    title: str
    summary: str
    fits: Callable[[StudyData], bool]
    write: Callable[[StudyData, Path], None]
    write_tables: Callable[[StudyData, Path], None]
    tables: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()

    def retire(self, directory: Path) -> None:
        """Remove what was written of the page."""
        for name in (self.file, *self.tables, *self.directories):
            remove(directory / name)


def pages() -> list[Page]:
    """The pages of all installed packages; BadInput if one cannot be loaded."""
    return [plugins.load(GROUP, name, Page) for name in plugins.names(GROUP)]


def pages_of(study: StudyData) -> list[Page]:
    """The pages that a study has."""
    return [page for page in pages() if page.fits(study)]


def styles() -> str:
    """The style sheet of pages."""
    return (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def load_template(path: Path, **filters: Callable[..., Any]) -> jinja2.Template:
    """The template in a file, with its filters; an undefined name in it is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= filters
    return environment.get_template(path.name)
