"""How often a run repeats its measurement: a number of times, or until its throughput is known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from kvscope.interval import half_width_share
from kvscope.plan.fields import MAX_REPEATS, NUMBER, RULE, Part, Real, Whole


class Repeats(Part):
    """Between `min` and `max` repeats, until the throughput's interval is narrow enough.

    `until` is half the width of its 95 % confidence interval, as a share of its mean.
    """

    # An interval needs two repeats.
    min: Annotated[Whole, Field(ge=2, le=MAX_REPEATS)]
    max: Annotated[Whole, Field(ge=2, le=MAX_REPEATS)]
    until: Annotated[Real, Field(gt=0)]


def _form(value: Any) -> str:
    return RULE if isinstance(value, dict | Repeats) else NUMBER


Repeated = Annotated[
    Annotated[Annotated[Whole, Field(ge=1, le=MAX_REPEATS)], Tag(NUMBER)]
    | Annotated[Repeats, Tag(RULE)],
    Discriminator(_form),
]


@dataclass(frozen=True)
class Stopping:
    """When the repeats of a run end.

    After the first one at which `min` were undisturbed and half the width of the throughput's 95 %
    confidence interval is within `until` times its mean, and after `max` in any case. Without
    `until` there are as many as were asked for (`min` = `max`).
    """

    min: int
    max: int
    until: float | None = None

    @classmethod
    def of(cls, repeats: int | Repeats) -> "Stopping":
        """The rule that an experiment's `repeats` stand for."""
        if isinstance(repeats, Repeats):
            return cls(repeats.min, repeats.max, repeats.until)
        return cls(repeats, repeats)

    def reached(self, throughputs: Sequence[float]) -> bool | None:
        """Whether the throughputs are as alike as was asked for; None if nothing was asked."""
        if self.until is None:
            return None
        return half_width_share(throughputs) <= self.until

    def ends(self, throughputs: Sequence[float], disturbed: int = 0) -> bool:
        """Whether no repeat follows those of these throughputs, of which so many were disturbed."""
        undisturbed = len(throughputs) - disturbed
        known = undisturbed >= self.min and bool(self.reached(throughputs))
        return known or len(throughputs) >= self.max

    def facts(self, throughputs: Sequence[float]) -> dict[str, Any]:
        """What run.json says of the rule and of what came of it."""
        share = half_width_share(throughputs)
        return {
            "min": self.min,
            "max": self.max,
            "until": self.until,
            "measured": len(throughputs),
            "half_width_share": None if math.isnan(share) else share,
            "reached": self.reached(throughputs),
        }
