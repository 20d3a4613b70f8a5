"""Our values beside the published ones, looked up by figure and settings."""

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
        self._found = [one for one in found if one.as_timed == one.as_timed]
        self._runs = list(runs)

    def of(self, figure: str, metric: str | None = None, **wanted: Any) -> list[Comparison]:
        """The values of a figure with these settings (`overflow__name` is overflow.name).

        Of tables that show a metric of the same experiments again, only the first counts.
        """
        keys = {key.replace("__", "."): value for key, value in wanted.items()}
        found: dict[tuple[Any, ...], Comparison] = {}
        for one in self._found:
            table, settings = one.point.table, one.point.settings
            if (
                table.figure == figure
                and metric in (None, table.metric)
                and all(settings.get(key) == value for key, value in keys.items())
            ):
                found.setdefault((table.metric, one.point.x, *_rest(one)), one)
        return list(found.values())

    def series(
        self, figure: str, *along: str, metric: str | None = None, **wanted: Any
    ) -> list[list[Comparison]]:
        """The values of a figure in series over the first setting of `along`, in its order.

        All settings of `along` may differ within a series.
        """
        found: dict[tuple[Any, ...], list[Comparison]] = {}
        for one in self.of(figure, metric, **wanted):
            if along[0] in one.point.settings:
                found.setdefault(_rest(one, *along), []).append(one)
        return [sorted(own, key=lambda one: one.point.settings[along[0]]) for own in found.values()]

    def steps(self, figure: str, *along: str, **wanted: Any) -> list[Pair]:
        """Each value and the next one of its series."""
        found = self.series(figure, *along, **wanted)
        return [pair for own in found for pair in pairwise(own)]

    def pairs(self, figure: str, **wanted: Any) -> list[Pair]:
        """Recompute and pinned swap of the same experiment, where both evict."""
        recomputed = self.of(figure, overflow__name=RECOMPUTE, **wanted)
        other = {_but_overflow(one): one for one in recomputed}
        pinned = self.of(figure, **PINNED, **wanted)
        found = [(other[key], one) for one in pinned if (key := _but_overflow(one)) in other]
        return [(a, b) for a, b in found if a.point.value and b.point.value and a.as_timed]

    def runs(self, figure: str, **wanted: Any) -> list[ReportedRun]:
        """The experiments behind the values of a figure, each once."""
        runs = [one.run for one in self.of(figure, **wanted) if one.run]
        return list({run.id: run for run in runs}.values())

    def drawn(self, figure: str) -> list[ReportedRun]:
        """The experiments that a figure without values shows."""
        asked = [one.runs for one in layouts() if one.figure == figure and one.runs]
        return [run for run in self._runs if any(one.fits(run.settings) for one in asked)]


def edge(pair: Pair) -> float:
    """The share of the recomputation's cost that swap saves; negative where it costs more."""
    recompute, swap = pair
    return 1 - swap.as_timed / recompute.as_timed


def _rest(one: Comparison, *but: str) -> tuple[Any, ...]:
    settings = one.point.settings.items()
    return tuple(sorted((key, str(value)) for key, value in settings if key not in but))


def _but_overflow(one: Comparison) -> tuple[Any, ...]:
    return _rest(one, *(key for key in one.point.settings if key.startswith("overflow.")))
