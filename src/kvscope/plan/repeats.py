"""How often a run repeats its measurement: a number of times, or until its throughput is known."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from kvscope.interval import half_width_share
from kvscope.plan.fields import MAX_REPEATS, NUMBER, RULE, Part, Real, Whole

# An interval of fewer says little, and a run of fewer is not valid.
MINIMUM_REPEATS = 3


def repeats_for_metrics(repeats: Iterable[int], disturbed: Collection[int]) -> list[int]:
    """The repeats that metrics are made of: the undisturbed ones if there are enough, or else all.

    What decides is what else the machine did, never how long a repeat took.
    """
    everything = list(repeats)
    undisturbed = [number for number in everything if number not in disturbed]
    return undisturbed if len(undisturbed) >= MINIMUM_REPEATS else everything


class RepeatRange(Part):
    """Between `min` and `max` repeats, until the throughput's interval is narrow enough.

    `until` is half the width of its 95 % confidence interval, as a share of its mean.
    """

    # An interval needs two repeats.
    min: Annotated[Whole, Field(ge=2, le=MAX_REPEATS)]
    max: Annotated[Whole, Field(ge=2, le=MAX_REPEATS)]
    until: Annotated[Real, Field(gt=0)]


def _form(value: Any) -> str:
    return RULE if isinstance(value, dict | RepeatRange) else NUMBER


RepeatsField = Annotated[
    Annotated[Annotated[Whole, Field(ge=1, le=MAX_REPEATS)], Tag(NUMBER)]
    | Annotated[RepeatRange, Tag(RULE)],
    Discriminator(_form),
]


@dataclass(frozen=True)
class StoppingRule:
    """When the repeats of a run end.

    After the first one at which `min` were undisturbed and half the width of the 95 % confidence
    interval of their throughput is within `until` times its mean, and after `max` in any case.
    Without `until` there are as many as requested (`min` = `max`).
    """

    min: int
    max: int
    until: float | None = None

    @classmethod
    def of(cls, repeats: int | RepeatRange) -> "StoppingRule":
        """The rule that an experiment's `repeats` stand for."""
        if isinstance(repeats, RepeatRange):
            return cls(repeats.min, repeats.max, repeats.until)
        return cls(repeats, repeats)

    def is_reached(self, throughputs: Sequence[float]) -> bool | None:
        """Whether the mean throughput is known as well as requested; None without a request."""
        if self.until is None:
            return None
        return half_width_share(throughputs) <= self.until

    def ends(self, throughputs: Sequence[float], disturbed: Collection[int] = ()) -> bool:
        """Whether no repeat follows those of these throughputs; `disturbed` are their numbers."""
        left = [one for number, one in enumerate(throughputs) if number not in disturbed]
        known = len(left) >= self.min and bool(self.is_reached(left))
        return known or len(throughputs) >= self.max

    def facts(
        self, throughputs: Sequence[float], disturbed: Collection[int] = ()
    ) -> dict[str, Any]:
        """What run.json says of the rule and of what came of it, by the repeats that count."""
        found = [
            throughputs[number]
            for number in repeats_for_metrics(range(len(throughputs)), disturbed)
        ]
        share = half_width_share(found)
        return {
            "min": self.min,
            "max": self.max,
            "until": self.until,
            "measured": len(throughputs),
            "half_width_share": None if math.isnan(share) else share,
            "reached": self.is_reached(found),
        }
