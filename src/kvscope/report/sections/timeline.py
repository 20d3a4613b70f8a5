"""The step timelines of each experiment."""

from kvscope.report.figures.step_timeline import FIGURE
from kvscope.report.section import Section

SECTION = Section(FIGURE.title, order=510, figure="step_timeline")
