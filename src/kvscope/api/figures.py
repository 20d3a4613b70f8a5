"""Figures of a study: one declaration gives the chart on the page, the PDF and the PNG.

A `Figure` makes a `Drawing` of a study, by the `Axes` that the study declares for it. Each `View`
of it is a chart, a `Spec` of Vega-Lite. `draw_figure` draws an installed one by its name.

- `charts`, parts of a chart: `number`, `text`, `colours`, `colour_channel`, `grid`, `heading`,
  `plot_width`; `PAPER`, how wide it is, `LETTER` a letter; `NUMBER`, a format; `SELECTED`, what a
  figure makes of axes; `PICKED`, which fades what a reader did not pick; `Body`, the template of
  a section of its own
- `theme`: `PALETTE`, `SHAPES`, and colours with a meaning, as `GREY`, `NOTE` and `DIFFERENT`,
  `PREFILL`, `DECODE` and `RUNNING`
"""

from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.figures import figure as charts
from kvscope.report.figures.figure import Drawing, Figure, Spec, View
from kvscope.report.figures.registry import draw_figure

__all__ = ["Axes", "Drawing", "Figure", "Spec", "View", "charts", "draw_figure", "theme"]
