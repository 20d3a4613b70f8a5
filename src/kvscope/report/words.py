"""Metrics and numbers as the report writes them."""

import math

from kvscope.base.statistics import Interval
from kvscope.metrics.measure import Measure

NBSP = "\N{NO-BREAK SPACE}"


def decimals_for(value: float, digits: int) -> int:
    """Decimal places that show `value` with this many significant digits, at least 0."""
    if value == 0 or math.isnan(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def number_text(value: float, digits: int = 3) -> str:
    """A number with at least this many significant digits; 1,234.5 style; '–' for NaN."""
    if math.isnan(value):
        return "–"
    text = f"{value:,.{min(decimals_for(value, digits), 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and value == round(value) else text


def estimate_text(number: Interval, shown: Measure) -> tuple[str, str]:
    """A value and its '± half' (empty without an interval) in the unit shown.

    The half width has two significant digits, the value ends at the same decimal place.
    """
    value, half = number.value * shown.scale, number.half * shown.scale
    if math.isnan(value):
        return "–", ""
    if math.isnan(half):
        return number_text(value), ""
    if half == 0:
        return number_text(value), "± 0"
    places = min(decimals_for(half, 2), decimals_for(value, 4) if value else 6)
    return f"{value:,.{places}f}", f"± {half:,.{places}f}"


def percent(share: float) -> str:
    """A share as a percentage of two significant digits, or whole from 10 % on."""
    return f"{100 * share:.{min(decimals_for(100 * share, 2), 2)}f}{NBSP}%"


def signed_percent(ratio: float) -> str:
    """'+12 %' for the ratio 1.12, '−12 %' for 0.88, '+∞' for infinity."""
    change = percent(abs(ratio - 1)) if math.isfinite(ratio) else "∞"
    return f"{'−' if ratio < 1 else '+'}{change}"


def interval_words(ratio: Interval) -> str:
    """The interval of the difference: ' (9 % to 15 %)', or ' (2 % lower to 5 % higher)'.

    Empty for two numbers without noise.
    """
    low, high = ratio.low - 1, ratio.high - 1
    if low == high:
        return ""
    if ratio.side_of(1) < 0:
        return f" ({percent(-high)} to {percent(-low)})"
    if math.isinf(high):
        return f" (at least {percent(low)})" if ratio.side_of(1) else ""
    if ratio.side_of(1):
        return f" ({percent(low)} to {percent(high)})"
    return f" ({percent(-low)} lower to {percent(high)} higher)"


def difference_text(apart: Interval, shown: Measure) -> str:
    """A difference with its sign, in the unit shown: '−9.5'."""
    value = apart.value * shown.scale
    sign = "−" if value < 0 else "+" if value > 0 else ""
    return f"{sign}{number_text(abs(value))}"
