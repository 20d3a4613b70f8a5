"""The figures of all installed packages."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from textwrap import wrap

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.reading import describe_error
from kvscope.plan.figures import GROUP, figure_names
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing, Figure

MODELED = "modeled, not measured"
MARK_LETTERS = 56  # of a line that fits a narrow page


@cache
def figures() -> dict[str, Figure]:
    """All figures by name, in the order of the page; BadInput if a figure cannot be loaded."""
    loaded = {name: plugins.load(GROUP, name, Figure) for name in figure_names()}
    return dict(sorted(loaded.items(), key=lambda named: (named[1].order, named[0])))


def drawings(study: StudyData) -> dict[str, Drawing]:
    """The figures that the study has data for, by name."""
    drawn = {name: draw_figure(study, name) for name in figures()}
    return {name: marked(study, drawing) for name, drawing in drawn.items() if drawing}


def marked(study: StudyData, drawing: Drawing) -> Drawing:
    """The drawing with what is said above it of numbers that were not measured."""
    marks = [MODELED] if study.modeled else []
    marks += wrap(study.mark, MARK_LETTERS)
    return replace(drawing, remarks=(*marks, *drawing.remarks))


def draw_figure(study: StudyData, name: str) -> Drawing | None:
    """A figure along the axes that the study declares; BadInput names the package that fails."""
    with blamed(name):
        return figures()[name].draw(study, study.declared_axes(name))


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Raise BadInput that names the package of a figure whose code fails in the `with` block."""
    try:
        yield
    except Exception as error:
        if package := plugins.origin(GROUP, name):
            raise BadInput(
                f"figure {name} of {package} raised {describe_error(error)}; fix or uninstall its "
                "package"
            ) from error
        raise


def unshown_data(study: StudyData) -> list[str]:
    """Sentences of figures on data that they do not show."""
    sentences: list[str] = []
    for name, figure in figures().items():
        with blamed(name):
            sentences += figure.faults(study)
    return sentences


def missing_figures(study: StudyData, drawn: Mapping[str, Drawing]) -> list[str]:
    """Why figures that the study requests are not drawn, a sentence each."""
    return [
        f"Figure '{request.name}' is not drawn: no experiment has the data it needs."
        if request.name in figure_names()
        else f"Figure '{request.name}' is not drawn: there are only {', '.join(figure_names())}."
        for request in study.figures
        if request.name not in drawn
    ]
