"""What a metric is: everything that is said of it, declared once.

Other packages add metrics as entry points in the group `kvscope.metric`, each a Metric.
docs/METRICS.md is made from the declarations by `python -m kvscope.docs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from kvscope.errors import BadInput

if TYPE_CHECKING:  # whose KV events have metrics
    from kvscope.analyse.records import Records

GROUP = "kvscope.metric"


@dataclass(frozen=True)
class Metric:
    """A number of one repeat: NaN where the repeat does not define it.

    `heading` is what a table's column or an axis says; `formula` is over table columns, in the
    notation of docs/METRICS.md; `of` computes the number, in `unit`, from the records of a repeat,
    and `uncertainty` how far it may be off, where that is known. `needs_all` names what must be
    traced in full for a metric of KV events.
    """

    name: str
    unit: str
    heading: str
    formula: str
    of: "Callable[[Records], float]"
    uncertainty: "Callable[[Records], float] | None" = None
    needs_all: str = ""

    def __call__(self, records: "Records") -> float:
        """The number of one repeat."""
        return self.of(records)


def metric(
    unit: str, heading: str, uncertainty: "Callable[[Records], float] | None" = None
) -> "Callable[[Callable[[Records], float]], Metric]":
    """A function as the metric of its name; the first paragraph of its docstring is the formula."""

    def declared(of: "Callable[[Records], float]") -> Metric:
        formula = " ".join((of.__doc__ or "").partition("\n\n")[0].split())
        return Metric(of.__name__, unit, heading, formula, of, uncertainty)

    return declared


def plugin_metrics() -> list[Metric]:
    """The metrics of other packages; BadInput if an entry point gives something else."""
    found = []
    for point in entry_points(group=GROUP):
        metric = point.load()
        if not isinstance(metric, Metric):
            raise BadInput(f"entry point {GROUP}: {point.name} ({point.value}) is not a Metric")
        found.append(metric)
    return found
