"""Our values beside the published ones, looked up by figure and settings."""

from collections.abc import Iterable
from typing import Any

from kvscope.report.paper.comparison import Comparison

RECOMPUTE, SWAP = "recompute", "swap"


class Values:
    """Our values and the published ones, by figure and settings."""

    def __init__(self, found: Iterable[Comparison]) -> None:
        self._found = [one for one in found if one.as_timed == one.as_timed]

    def of(self, figure: str, metric: str | None = None, **wanted: Any) -> list[Comparison]:
        """The values of a figure with these settings (`overflow_name` is overflow.name)."""
        keys = {key.replace("__", "."): value for key, value in wanted.items()}
        return [
            one
            for one in self._found
            if one.point.table.figure == figure
            and metric in (None, one.point.table.metric)
            and all(one.point.settings.get(key) == value for key, value in keys.items())
        ]

    def pairs(self, figure: str, **wanted: Any) -> list[tuple[Comparison, Comparison]]:
        """Recompute and pinned swap of the same experiment, where both evict."""

        def rest(one: Comparison) -> tuple[Any, ...]:
            return tuple(
                sorted(
                    (key, str(value))
                    for key, value in one.point.settings.items()
                    if not key.startswith("overflow")
                )
            )

        recomputed = self.of(figure, overflow__name=RECOMPUTE, **wanted)
        other = {rest(one): one for one in recomputed}
        pinned = self.of(figure, overflow__name=SWAP, overflow__host_memory="pinned", **wanted)
        found = [(other[rest(one)], one) for one in pinned if rest(one) in other]
        return [(a, b) for a, b in found if a.point.value and b.point.value]
