"""A metric's value as the report has it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A metric's value with its 95 % interval (null: NaN), in the table's unit."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether there were repeats enough for an interval."""
        return not math.isnan(self.low) and not math.isnan(self.high)

    @property
    def half(self) -> float:
        """Half the interval's width; NaN without one."""
        return (self.high - self.low) / 2

    @property
    def exact(self) -> "Number":
        """The same value with an interval of no width: a number without noise."""
        return Number(self.value, self.value, self.value)
