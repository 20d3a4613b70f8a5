"""Stopping rules: a number of repeats, or repeats until a width is reached."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from kvscope.plan.fields import (
    MAX_REPEATS,
    NUMBER,
    RULE,
    Part,
    Real,
    Seconds,
    Whole,
    impossible,
)


class RepeatsUntil(Part):
    """At least `min` repeats, then until the interval is narrow enough or the budget is spent.

    `until` is half the width of a 95 % confidence interval, as a share: of the widest comparison
    that is wanted of experiments that are measured together, else of the run's own throughput.
    `budget_s` are seconds of measurement, from the first repeat's start.
    """

    # An interval needs two repeats.
    min: Annotated[Whole, Field(ge=2, le=MAX_REPEATS)]
    until: Annotated[Real, Field(gt=0)]
    budget_s: Seconds

    @model_validator(mode="before")
    @classmethod
    def _without_max(cls, value: Any) -> Any:
        if isinstance(value, dict) and "max" in value:
            raise impossible(
                f"repeats.max ({value['max']!r:.60}) is not a key any more: repeats.budget_s, the "
                "seconds after which repeats end, replaces it, as in "
                "repeats={min:5,until:0.05,budget_s:120}",
                "repeats",
            )
        return value


def _form(value: Any) -> str:
    return RULE if isinstance(value, dict | RepeatsUntil) else NUMBER


RepeatsField = Annotated[
    Annotated[Annotated[Whole, Field(ge=1, le=MAX_REPEATS)], Tag(NUMBER)]
    | Annotated[RepeatsUntil, Tag(RULE)],
    Discriminator(_form),
]


@dataclass(frozen=True)
class StoppingRule:
    """The rule that ends the repeats of a run, or the rounds of a campaign.

    They end after `min`, and with `until` not before half the width of the interval is at most
    that share, `budget_s` seconds are spent, or there are MAX_REPEATS.
    """

    min: int
    until: float | None = None
    budget_s: float | None = None

    @classmethod
    def of(cls, repeats: int | RepeatsUntil) -> "StoppingRule":
        """Make the rule of an experiment's key `repeats`."""
        if isinstance(repeats, RepeatsUntil):
            return cls(repeats.min, repeats.until, repeats.budget_s)
        return cls(repeats)

    def is_reached(self, half_width_share: float) -> bool | None:
        """Whether the interval is as narrow as requested; NaN is not. None without `until`."""
        return None if self.until is None else half_width_share <= self.until

    def ends(self, measured: int, half_width_share: float, elapsed_s: float) -> bool:
        """Whether `measured` repeats are enough, with this half width after so many seconds."""
        if measured < self.min:
            return False
        spent = self.budget_s is not None and elapsed_s >= self.budget_s
        narrow = self.is_reached(half_width_share)
        return narrow is None or narrow or spent or measured >= MAX_REPEATS

    def facts(self, measured: int, half_width_share: float) -> dict[str, Any]:
        """The entry of run.json: the rule, and the half width that the repeats reached."""
        return {
            "min": self.min,
            "until": self.until,
            "budget_s": self.budget_s,
            "measured": measured,
            "half_width_share": None if math.isnan(half_width_share) else half_width_share,
            "reached": self.is_reached(half_width_share),
        }
