"""Declarations of numbers in the `metrics` table: name, unit, heading, and how it is displayed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

# The display unit of a unit, if a measure names none.
DISPLAYED = {"share": "%", "B/s": "GB/s"}
# The factor from the first unit to the second.
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
    """The declaration of a number in the `metrics` table, and how it is displayed.

    `heading` labels a table's column or an axis. `formula` is over table columns, in the notation
    of docs/METRICS.md. More is better where `better` is 1, less where it is -1. `display` is the
    unit on the page, if another than `unit`. A `signed` measure may be negative: its axis shows
    intervals below 0.

    `column` is its place among the columns of the page's table, experiments.csv, comparisons and
    `kvscope compare`; a measure without one is in none of them. On the page a column is folded
    unless it is `first`. An `optional` one is left out where it is 0 or undefined in every
    experiment. `uncertainty` is the measure of the method's error.
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
    uncertainty: "Measure | None" = field(default=None, kw_only=True)

    @property
    def display_unit(self) -> str:
        """The unit in which it is displayed."""
        return self.display or DISPLAYED.get(self.unit, self.unit)

    @property
    def scale(self) -> float:
        """The factor from a value of the `metrics` table to `display_unit`."""
        return SCALES.get((self.unit, self.display_unit), 1.0)


def is_of_time(unit: str) -> bool:
    """Whether a metric in this unit is a time or a rate."""
    return unit == "s" or unit.endswith("/s")


SOURCES: list[Callable[[], Iterable[Measure]]] = []
"""Functions that give all measures; `study_metrics` adds the function of its own measures."""


def measures() -> dict[str, Measure]:
    """All measures by name: metrics of runs, those of other packages, and those of studies.

    BadInput if a package's cannot be loaded.
    """
    return _by_name(tuple(SOURCES))


@cache
def _by_name(sources: tuple[Callable[[], Iterable[Measure]], ...]) -> dict[str, Measure]:
    return {measure.name: measure for source in sources for measure in source()}
