"""Sections: the parts of a study's page, and the report that they are made of.

A section is registered in the entry-point group `kvscope.section`, under the id that it has on the
page: kvscope's own, which are in `report/sections`, and those of other packages.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
from markupsafe import Markup

from kvscope.base import plugins
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.layout import UNFINISHED, study_directory
from kvscope.base.quantities import plural
from kvscope.base.reading import describe_error
from kvscope.report.chart import chart
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.figures.registry import drawings, figures
from kvscope.report.pages import load_template
from kvscope.report.render import Printed, pack, print_figures

GROUP = "kvscope.section"
CHART_ALONE = Path(__file__).parent / "chart_alone.html.j2"
TAKEN = ("table", "filter", "filtered", "baseline", "configs", "differences", "vega")
"""Ids of elements of the page that are no sections."""
LAST = 900  # place of a section that names none: before how the page is made again


@dataclass(frozen=True)
class Report:
    """The report of a study: its figures, and where it goes; links are relative to there.

    It goes to `out`, or to `results`/studies/<study>. That of a planned study that is not finished
    goes to unfinished/ in there: a page that stands where the workflow wants it is the page of the
    whole study.
    """

    study: StudyData
    results: Path
    out: Path | None = None

    @property
    def home(self) -> Path:
        """The directory of the study's report."""
        return self.out or study_directory(self.results, self.study.name)

    @property
    def whole(self) -> bool:
        """Whether it is the report of all that was planned."""
        return self.study.finished or not self.study.planned

    @property
    def place(self) -> Path:
        """The directory that this report is written to."""
        return self.home if self.whole else self.home / UNFINISHED

    @cached_property
    def drawings(self) -> Mapping[str, Drawing]:
        """The figures that the study has data for, by name."""
        return drawings(self.study)

    @cached_property
    def prints(self) -> Mapping[str, Printed]:
        """The printed figures of the report."""
        return print_figures(self.drawings)

    def chart(self, figure: str) -> Markup:
        """HTML of a figure's chart."""
        drawn = figures()[figure]
        return chart(figure, drawn.title, drawn.caption, self.drawings[figure], self.prints[figure])

    def link(self, path: Path) -> str:
        """The address of a file or directory from the page."""
        return Path(os.path.relpath(path.resolve(), self.place.resolve())).as_posix()


@dataclass(frozen=True)
class Section:
    """A section of the page: its heading, and the template of what stands below it.

    `template` is a file for Jinja. `context` gives its values for a report, or None where there is
    nothing to show, and the page has no such section; `study` is a value of every template. Data
    for a script are `{{ values | packed }}` in a `<script type="text/plain" id="…">`, which the
    page's function `unpack(element)` gives as JSON. `order` is the section's place among others.
    A section with a `figure` has its chart, `{{ chart }}` in the template, and is on the page only
    where the figure is drawn. One without a title stands above the table of contents. One that is
    not `marked` has no numbers, which may be rehearsed.
    A page has the files of `styles` and `scripts` of its sections, each once, shown or not. Of a
    section's `tables`, files beside the page, `write_tables` writes all into a directory.
    """

    title: str
    template: Path = CHART_ALONE
    context: Callable[[Report], Mapping[str, Any] | None] = lambda _: {}
    order: int = LAST
    figure: str = ""
    marked: bool = True
    styles: tuple[Path, ...] = ()
    scripts: tuple[Path, ...] = ()
    tables: tuple[str, ...] = ()
    write_tables: Callable[[StudyData, Path], None] = lambda *_: None


@dataclass(frozen=True)
class Shown:
    """A section that a page has, with its id and its HTML."""

    name: str
    section: Section
    body: Markup


def sections() -> dict[str, Section]:
    """All installed sections in their order; BadInput if a section cannot be loaded."""
    loaded = {_checked(name): plugins.load(GROUP, name, Section) for name in plugins.names(GROUP)}
    return dict(sorted(loaded.items(), key=lambda named: (named[1].order, named[0])))


def _checked(name: str) -> str:
    """The name of a section; BadInput if it cannot be an id, or is that of another element."""
    if name in TAKEN or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BadInput(
            f"section {name!r:.60} of {plugins.origin(GROUP, name)}: its name must be lower-case "
            f"letters, digits and _, and not one of {', '.join(TAKEN)}; rename or uninstall it"
        )
    return name


def show(name: str, section: Section, report: Report) -> Shown | None:
    """The section of a report, None where it has nothing; BadInput names a package that fails."""
    if section.figure and section.figure not in report.drawings:
        return None
    try:
        values = section.context(report)
        if values is None:
            return None
        values_ = {"study": report.study, **values}
        if section.figure:
            values_["chart"] = report.chart(section.figure)
        template = load_template(section.template, plural=plural, packed=_packed)
        return Shown(name, section, Markup(template.render(**values_)))
    except KvscopeError:
        raise
    except Exception as error:
        package = plugins.origin(GROUP, name)
        if not package:
            raise
        raise BadInput(
            f"section {name} of {package} raised {describe_error(error)}; fix or uninstall its "
            "package"
        ) from error


def _packed(values: Any) -> str:
    return pack(orjson.dumps(values).decode())
