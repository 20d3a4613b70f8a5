"""Figures of a study: one declaration gives the chart on the page, the PDF and the PNG.

`draw_figure` draws an installed one by its name, by the `Axes` that a study declares for it.

- `charts`: a `Figure` makes a `Drawing` of a study, each `View` of which is a chart, a `Spec` of
  Vega-Lite. Parts of a chart: `number`, `text`,
  `colours`, `colour_channel`, `grid`, `heading`, `plot_width`; `PAPER`, how wide it is, `LETTER` a
  letter; `NUMBER`, a format; `SELECTED`, what a figure makes of axes; `PICKED`, which fades what a
  reader did not pick
- `over_experiments`: the function of this name makes a figure of metrics, each `Panel` of which are
  of one unit
- `curves`: `lines_drawing` of `Lines`, and the `distribution` of values, a `Distribution`
- `theme`: `PALETTE`, `SHAPES`, and colours with a meaning, as `GREY`, `NOTE` and `DIFFERENT`,
  `PREFILL`, `DECODE` and `RUNNING`
"""

from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.figures import curves, over_experiments
from kvscope.report.figures import figure as charts
from kvscope.report.figures.registry import draw_figure

__all__ = ["Axes", "charts", "curves", "draw_figure", "over_experiments", "theme"]
