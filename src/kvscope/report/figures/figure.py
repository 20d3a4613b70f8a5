"""What a figure is: how to draw it on paper, and as a chart on the page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kvscope.report.data import StudyData

# What the page's script draws: {"panels": […], "views": […]} over experiments (see `panels.py`),
# or a Plotly figure {"data": […], "layout": {…}}. None: the page shows it in another section.
Chart = dict[str, Any] | None


@dataclass(frozen=True)
class StudyFigure:
    """A figure of a study; it is made if the study has data for it (`available`).

    `section` is the page's section that shows what has no chart.
    """

    name: str
    title: str
    caption: str
    available: Callable[[StudyData], bool]
    draw: Callable[[StudyData], Figure]
    chart: Callable[[StudyData], Chart]
    section: str = "timeline"


def no_chart(study: StudyData) -> Chart:
    """For a figure that the page shows in another way."""
    return None
