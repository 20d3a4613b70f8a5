"""How often a run repeats its measurement: a number of times, or until its throughput is known."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from kvscope.interval import half_width_share
from kvscope.plan.fields import MAX_REPEATS, NUMBER, RULE, Part, Real, Whole

# With fewer repeats the interval is not meaningful, and the run is not valid.
MINIMUM_REPEATS = 3


def repeats_for_metrics(repeats: Iterable[int], disturbed: Collection[int]) -> list[int]:
    """The repeats that metrics are computed from.

    The undisturbed ones if there are at least MINIMUM_REPEATS, else all. The selection depends on
    other load of the machine only, never on the duration of a repeat.
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
    """The rule that ends the repeats of a run.

    They end after the first repeat at which at least `min` are undisturbed and half the width of
    the 95 % confidence interval of their throughput is at most `until` times its mean, and after
    `max` in any case. Without `until`, `min` = `max` is the number of repeats.
    """

    min: int
    max: int
    until: float | None = None

    @classmethod
    def of(cls, repeats: int | RepeatRange) -> "StoppingRule":
        """Make the rule of an experiment's key `repeats`."""
        if isinstance(repeats, RepeatRange):
            return cls(repeats.min, repeats.max, repeats.until)
        return cls(repeats, repeats)

    def is_reached(self, throughputs: Sequence[float]) -> bool | None:
        """Whether the throughput's interval is as narrow as requested; None without `until`."""
        if self.until is None:
            return None
        return half_width_share(throughputs) <= self.until

    def ends(self, throughputs: Sequence[float], disturbed: Collection[int] = ()) -> bool:
        """Whether the run ends after repeats with these throughputs (tokens/s), in order.

        `disturbed` has the numbers of the disturbed repeats.
        """
        left = [one for number, one in enumerate(throughputs) if number not in disturbed]
        known = len(left) >= self.min and bool(self.is_reached(left))
        return known or len(throughputs) >= self.max

    def facts(
        self, throughputs: Sequence[float], disturbed: Collection[int] = ()
    ) -> dict[str, Any]:
        """The entry of run.json: the rule, and the half width that the repeats reached."""
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
