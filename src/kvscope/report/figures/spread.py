"""Which experiments of a large study its figures show."""

from collections.abc import Sequence
from typing import TypeVar

from kvscope.base.quantities import plural
from kvscope.report.data import ReportedRun

SMALL = 40  # experiments; of no more, every figure shows what it has room for, in their order
MOST = 480  # experiments in a figure of metrics: drawing takes time and memory for each

T = TypeVar("T")


def spread(runs: Sequence[ReportedRun], most: int = MOST) -> list[ReportedRun]:
    """At most `most` of the runs, in their order: the first ones of a small study, else evenly.

    Runs that repeat the settings of an earlier one with another seed are shown last.
    """
    if len(runs) <= max(most, SMALL):
        return [*runs[:most]]
    settings = {
        repr([pair for pair in run.varied.items() if pair[0] != "seed"]): run
        for run in reversed(runs)
    }
    firsts = {run.id for run in settings.values()}
    distinct = [run for run in runs if run.id in firsts]
    again = [run for run in runs if run.id not in firsts]
    chosen = [*evenly(distinct, most), *evenly(again, most - len(distinct))]
    kept = {run.id for run in chosen}
    return [run for run in runs if run.id in kept]


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, at equal distances."""
    count = max(0, min(most, len(items)))
    return [items[place * len(items) // count] for place in range(count)]


def some_of(shown: int, count: int) -> tuple[str, ...]:
    """A remark on the experiments that a figure shows; none if it shows all."""
    sentence = f"{shown} of {plural(count, 'experiment')} are shown, spread evenly over them."
    return (sentence,) if shown < count else ()
