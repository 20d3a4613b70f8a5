"""The declaration of a metric: name, unit, heading, formula and function.

Other packages add metrics as entry points in the group `kvscope.metric`, each a Metric.
`python -m kvscope.docs` generates the tables of docs/METRICS.md from the declarations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvscope import plugins

if TYPE_CHECKING:  # imports this module
    from kvscope.analyse.run_view import RunView

GROUP = "kvscope.metric"
LAST = 1000  # place of a package's metric that names none


# The unit in which values of a unit are displayed, where a measure names none.
DISPLAYED = {"share": "%", "B/s": "GB/s"}
# What turns a value in the first unit into the second.
SCALES = {
    ("s", "ms"): 1e3,
    ("s", "µs"): 1e6,
    ("share", "%"): 100.0,
    ("B/s", "GB/s"): 1e-9,
    ("B", "GB"): 1e-9,
    ("B", "GiB"): 2.0**-30,
    ("B", "MiB"): 2.0**-20,
}


@dataclass(frozen=True)
class Measure:
    """What a number of the `metrics` table is, and how it is displayed.

    `heading` labels a table's column or an axis. `formula` is over table columns, in the notation
    of docs/METRICS.md. More is better where `better` is 1, less where it is -1. `display` is the
    unit on the page, if another than `unit`. A `signed` measure may be negative: its axis shows
    intervals below 0.

    `column` is its place among the columns of the page's table, experiments.csv, comparisons and
    `kvscope compare`; a measure without one is in none of them. On the page a column is folded
    unless it is `first`. An `optional` one is left out where it is 0 or undefined in every
    experiment.
    """

    name: str
    unit: str
    heading: str
    formula: str
    better: int = field(default=0, kw_only=True)
    display: str = field(default="", kw_only=True)
    signed: bool = field(default=False, kw_only=True)
    optional: bool = field(default=False, kw_only=True)
    column: int = field(default=0, kw_only=True)
    first: bool = field(default=False, kw_only=True)

    @property
    def display_unit(self) -> str:
        """The unit in which it is displayed."""
        return self.display or DISPLAYED.get(self.unit, self.unit)

    @property
    def scale(self) -> float:
        """What turns a value of the `metrics` table into `display_unit`."""
        return SCALES.get((self.unit, self.display_unit), 1.0)


@dataclass(frozen=True)
class Metric(Measure):
    """A metric of one repeat.

    `of` computes the value, in `unit`, from the records of a repeat, NaN where
    it is undefined; `uncertainty` is the metric of the method's error. A `modeled_interval` of a
    modeled run comes from fits of its hardware's numbers: they decide the value, and it is quickly
    computed from passes, requests and preemptions. A metric that does not need passes may be
    defined of published kernels, which have none. `order` is the place of a package's metric in the
    `metrics` table, after kvscope's own.
    """

    of: "Callable[[RunView], float]"
    uncertainty: "Metric | None" = None
    modeled_interval: bool = False
    needs_passes: bool = field(default=True, kw_only=True)
    order: int = field(default=LAST, kw_only=True)

    def __call__(self, records: "RunView") -> float:
        """The metric's value for one repeat, in `unit`."""
        return self.of(records)


def ratio(numerator: float, denominator: float) -> float:
    """A quotient; NaN of 0."""
    return numerator / denominator if denominator else math.nan


def is_of_time(unit: str) -> bool:
    """Whether a metric in this unit is a time or a rate."""
    return unit == "s" or unit.endswith("/s")


def metric(
    unit: str,
    heading: str,
    uncertainty: "Metric | None" = None,
    modeled_interval: bool = False,
    **display: Any,
) -> "Callable[[Callable[[RunView], float]], Metric]":
    """Declare a function as a metric: its name, and its docstring's first paragraph as formula.

    `display` are the fields of Measure that say how it is displayed.
    """

    def declared(of: "Callable[[RunView], float]") -> Metric:
        formula = " ".join((of.__doc__ or "").partition("\n\n")[0].split())
        return Metric(
            of.__name__,
            unit,
            heading,
            formula,
            of,
            uncertainty,
            modeled_interval=modeled_interval,
            **display,
        )

    return declared


def plugin_metrics() -> list[Metric]:
    """The metrics of other packages, by order and name; BadInput as for `plugins.load`."""
    found = (plugins.load(GROUP, name, Metric) for name in plugins.names(GROUP))
    return sorted(found, key=lambda metric: metric.order)


def origin_of(metric: Metric) -> str | None:
    """The origin of another package's metric, 'toys 0.1, toys:METRIC'; None of kvscope's own."""
    names = (name for name in plugins.names(GROUP) if plugins.load(GROUP, name, Metric) is metric)
    return next((plugins.origin(GROUP, name) for name in names), None)
