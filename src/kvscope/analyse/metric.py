"""The declaration of a metric: name, unit, heading, formula and function.

Other packages add metrics as entry points in the group `kvscope.metric`, each a Metric.
`python -m kvscope.docs` generates the tables of docs/METRICS.md from the declarations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from kvscope.errors import BadInput

if TYPE_CHECKING:  # imports this module
    from kvscope.analyse.records import Records

GROUP = "kvscope.metric"


@dataclass(frozen=True)
class Metric:
    """A metric of one repeat.

    `heading` labels a table's column or an axis. `formula` is over table columns, in the notation
    of docs/METRICS.md. `of` computes the value, in `unit`, from the records of a repeat, NaN where
    it is undefined; `uncertainty` is the metric of the method's error. `needs_all` names what must
    be traced in full for a metric of KV events. A `modeled_interval` of a modeled run comes from
    fits of its hardware's numbers: they decide the value, and it is quickly computed from passes,
    requests and preemptions.
    """

    name: str
    unit: str
    heading: str
    formula: str
    of: "Callable[[Records], float]"
    uncertainty: "Metric | None" = None
    needs_all: str = ""
    modeled_interval: bool = False

    @property
    def of_time(self) -> bool:
        """Whether clocks decide the value, so that other load changes it; otherwise counts do."""
        return is_of_time(self.unit)

    def __call__(self, records: "Records") -> float:
        """The metric's value for one repeat, in `unit`."""
        return self.of(records)


def is_of_time(unit: str) -> bool:
    """Whether a metric in this unit is a time or a rate."""
    return unit == "s" or unit.endswith("/s")


def metric(
    unit: str,
    heading: str,
    uncertainty: "Metric | None" = None,
    modeled_interval: bool = False,
) -> "Callable[[Callable[[Records], float]], Metric]":
    """Declare a function as a metric: its name, and its docstring's first paragraph as formula."""

    def declared(of: "Callable[[Records], float]") -> Metric:
        formula = " ".join((of.__doc__ or "").partition("\n\n")[0].split())
        return Metric(
            of.__name__,
            unit,
            heading,
            formula,
            of,
            uncertainty,
            modeled_interval=modeled_interval,
        )

    return declared


def plugin_metrics() -> list[Metric]:
    """The metrics of other packages. Raises BadInput if an entry point is not a Metric."""
    found = []
    for point in entry_points(group=GROUP):
        metric = point.load()
        if not isinstance(metric, Metric):
            raise BadInput(f"entry point {GROUP}: {point.name} ({point.value}) is not a Metric")
        found.append(metric)
    return found
