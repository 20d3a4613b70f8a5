"""Our values beside the published ones, by figure and settings."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from kvscope.api.sections import ReportedRun
from kvscope_paper.comparison import Comparison
from kvscope_paper.layouts import layouts

RECOMPUTE, SWAP = "recompute", "swap"
# The settings of Figures 8 to 10 that are swap to pinned memory, as the paper's is but for 8a.
PINNED: dict[str, Any] = {"overflow__name": SWAP, "overflow__host_memory": "pinned"}

POLICIES: tuple[dict[str, Any], ...] = ({"overflow__name": RECOMPUTE}, PINNED)

Pair = tuple[Comparison, Comparison]


class Values:
    """Our values and the published ones, by figure and settings; and the runs of one device."""

    def __init__(self, found: Iterable[Comparison], runs: Iterable[ReportedRun] = ()) -> None:
        self._found = [
            comparison for comparison in found if comparison.as_timed == comparison.as_timed
        ]
        self._runs = list(runs)

    def of(self, figure: str, metric: str | None = None, **wanted: Any) -> list[Comparison]:
        """The values of a figure with these settings (`overflow__name` is overflow.name).

        Of tables that show a metric of the same experiments again, only the first counts.
        """
        keys = {key.replace("__", "."): value for key, value in wanted.items()}
        first: dict[tuple[Any, ...], Comparison] = {}
        for comparison in self._found:
            table, settings = comparison.point.table, comparison.point.settings
            if (
                table.figure == figure
                and metric in (None, table.metric)
                and all(settings.get(key) == value for key, value in keys.items())
            ):
                first.setdefault((table.metric, comparison.point.x, *_rest(comparison)), comparison)
        return list(first.values())

    def series(
        self, figure: str, *along: str, metric: str | None = None, **wanted: Any
    ) -> list[list[Comparison]]:
        """The values of a figure in series over the first setting of `along`, in its order.

        All settings of `along` may differ within a series.
        """
        groups: dict[tuple[Any, ...], list[Comparison]] = {}
        for comparison in self.of(figure, metric, **wanted):
            if along[0] in comparison.point.settings:
                groups.setdefault(_rest(comparison, *along), []).append(comparison)
        return [
            sorted(group, key=lambda comparison: comparison.point.settings[along[0]])
            for group in groups.values()
        ]

    def steps(self, figure: str, *along: str, **wanted: Any) -> list[Pair]:
        """Each value and the next one of its series."""
        all_series = self.series(figure, *along, **wanted)
        return [pair for series in all_series for pair in pairwise(series)]

    def pairs(self, figure: str, **wanted: Any) -> list[Pair]:
        """Recompute and pinned swap of the same experiment, where both evict."""
        recomputed = self.of(figure, overflow__name=RECOMPUTE, **wanted)
        other = {_but_overflow(comparison): comparison for comparison in recomputed}
        pinned = self.of(figure, **PINNED, **wanted)
        pairs = [
            (other[key], comparison)
            for comparison in pinned
            if (key := _but_overflow(comparison)) in other
        ]
        return [(a, b) for a, b in pairs if a.point.value and b.point.value and a.as_timed]

    def runs(self, figure: str, **wanted: Any) -> list[ReportedRun]:
        """The experiments behind the values of a figure, each once."""
        runs = [comparison.run for comparison in self.of(figure, **wanted) if comparison.run]
        return list({run.id: run for run in runs}.values())

    def drawn(self, figure: str) -> list[ReportedRun]:
        """The experiments that a figure without values shows."""
        asked = [layout.runs for layout in layouts() if layout.figure == figure and layout.runs]
        return [
            run for run in self._runs if any(selection.fits(run.settings) for selection in asked)
        ]


def edge(pair: Pair) -> float:
    """The share of the recomputation's cost that swap saves; negative where it costs more."""
    recompute, swap = pair
    return 1 - swap.as_timed / recompute.as_timed


def _rest(comparison: Comparison, *but: str) -> tuple[Any, ...]:
    settings = comparison.point.settings.items()
    return tuple(sorted((key, str(value)) for key, value in settings if key not in but))


def _but_overflow(comparison: Comparison) -> tuple[Any, ...]:
    return _rest(
        comparison, *(key for key in comparison.point.settings if key.startswith("overflow."))
    )
