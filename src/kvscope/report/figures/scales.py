"""Logarithmic scales: when an axis needs one, and ticks that can be read."""

import math
from collections.abc import Sequence

DECADE = 10.0


def is_wide(values: Sequence[float], ratio: float = 7.0) -> bool:
    """Whether positive values spread further than `ratio`, and a linear axis would hide some."""
    return bool(values) and 0 < min(values) * ratio < max(values)


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks from `low` to `high` (> 0): 1, 2 and 5 of each decade, or decades if there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = last - first
    steps = (1, 2, 5) if decades <= 2 else (1,)
    every = -(-decades // 8)
    ticks = [step * DECADE**power for power in range(first, last + 1, every) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]
