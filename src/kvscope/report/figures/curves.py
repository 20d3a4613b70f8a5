"""Curves for figures of packages: lines over a number, and cumulative distributions."""

from kvscope.report.figures.distribution import Distribution, distribution
from kvscope.report.figures.lines import Lines, lines_drawing

__all__ = ["Distribution", "Lines", "distribution", "lines_drawing"]
