"""Marks of a chart that was drawn as SVG or PDF."""

import re

from kvscope.base import plugins
from kvscope.plan.figures import GROUP, figure_names
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.figures.registry import draw_figure

MARKS = re.compile(r'<g class="mark-(\w+) role-mark[^"]*"[^>]*>(.*?)</g>', re.DOTALL)


def draw(figure: str, study: StudyData) -> Drawing:
    """A figure's drawing of a study that has what it shows."""
    drawing = draw_figure(study, figure)
    assert drawing is not None
    return drawing


def own_figures() -> set[str]:
    """The names of kvscope's own figures."""
    return {name for name in figure_names() if not plugins.origin(GROUP, name)}


def marks_of(svg: str) -> int:
    """How many marks there are: not axes, legends, titles."""
    return sum(content.count("<path") for kind, content in MARKS.findall(svg) if kind != "group")


def streams(pdf: bytes) -> list[bytes]:
    """Drawings of a PDF and its fonts; their objects may be in any order."""
    return sorted(re.findall(rb"stream\n(.*?)endstream", pdf, re.DOTALL))
