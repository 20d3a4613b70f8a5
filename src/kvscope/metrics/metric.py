"""The declaration of a metric: name, unit, heading, formula and function.

Other packages add metrics as entry points in the group `kvscope.metric`, each a Metric.
`python -m kvscope.cli.docs` generates the tables of docs/METRICS.md from the declarations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvscope.base import plugins
from kvscope.metrics.measure import Measure

if TYPE_CHECKING:  # imports this module
    from kvscope.tables.run_view import RunView

GROUP = "kvscope.metric"
LAST = 10_000  # place of a metric without an order


@dataclass(frozen=True)
class Metric(Measure):
    """A metric of one repeat.

    `of` computes the value, in `unit`, from the records of a repeat, NaN where it is undefined. A
    `modeled_interval` of a modeled run comes from fits of its hardware's numbers: they decide the
    value, and it is quickly computed from passes, requests and preemptions. A metric that does not
    need passes may be defined of published kernels, which have none. `order` is the place of a
    package's metric in the tables, where kvscope's own stand at 10, 20, …
    """

    of: "Callable[[RunView], float]"
    modeled_interval: bool = False
    needs_passes: bool = field(default=True, kw_only=True)
    order: int = field(default=LAST, kw_only=True)

    def __call__(self, records: "RunView") -> float:
        """The metric's value for one repeat, in `unit`."""
        return self.of(records)


def ratio(numerator: float, denominator: float) -> float:
    """A quotient; NaN of 0."""
    return numerator / denominator if denominator else math.nan


def metric(
    unit: str,
    heading: str,
    uncertainty: "Metric | None" = None,
    modeled_interval: bool = False,
    order: int = LAST,
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
            uncertainty=uncertainty,
            modeled_interval=modeled_interval,
            order=order,
            **display,
        )

    return declared


def plugin_metrics() -> list[Metric]:
    """The metrics of other packages, by order and name; BadInput as for `plugins.load`."""
    metrics = (plugins.load(GROUP, name, Metric) for name in plugins.names(GROUP))
    return sorted(metrics, key=lambda metric: metric.order)


def origin_of(metric: Metric) -> str | None:
    """The origin of another package's metric, 'toys 0.1, toys:METRIC'; None of kvscope's own."""
    names = (name for name in plugins.names(GROUP) if plugins.load(GROUP, name, Metric) is metric)
    return next((plugins.origin(GROUP, name) for name in names), None)
