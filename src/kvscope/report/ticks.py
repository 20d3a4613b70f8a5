"""The values of a varied key along an axis: their order, and how far apart they stand."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from kvscope.report.traits import Option

# The share of an axis that a letter of a tick's label takes, about.
LETTER = 0.025


def in_order(values: Iterable[Any]) -> list[Any]:
    """Different values: numbers by size, of one option by its settings, anything else as it is."""
    different = list(dict.fromkeys(values))
    if all(map(is_number, different)):
        return sorted(different)
    first: dict[str, int] = {}
    for value in different:
        first.setdefault(_name(value), len(first))
    numbers = {value: _numbers(value) for value in different}
    return sorted(different, key=lambda value: (first[_name(value)], numbers[value]))


def _name(value: Any) -> str:
    return value.name if isinstance(value, Option) else str(value)


def _numbers(value: Any) -> list[float]:
    """An option's own numbers, by which its variants are ordered."""
    own = value.settings if isinstance(value, Option) else ()
    return [float(number) for _, number in own if is_number(number)]


def positions(values: Sequence[float], ticks: Sequence[str]) -> tuple[float, ...]:
    """Where ordered numbers stand on an axis: powers of two by their logarithm, others to scale.

    Others stand by their logarithm, too, if that sets them apart more evenly; and those too close
    for their labels stand evenly. Distances are 1 on average.
    """
    last = len(values) - 1
    even = tuple(map(float, range(len(values))))
    scales = [[float(value) for value in values]]
    if all(value > 0 for value in values):
        logarithms = [math.log2(value) for value in values]
        powers = all(math.frexp(value)[0] == 0.5 for value in values)
        scales = [logarithms] if powers else [*scales, logarithms]
    apart = [scale for scale in scales if scale[-1] > scale[0]]
    shares = [[(at - scale[0]) / (scale[-1] - scale[0]) for at in scale] for scale in apart]
    best = max(shares, key=_closest)
    longest = max(map(len, ticks))
    return tuple(last * at for at in best) if _closest(best) > LETTER * (longest + 1) else even


def _closest(places: Sequence[float]) -> float:
    return min(b - a for a, b in pairwise(places))


def is_number(value: Any) -> bool:
    """Whether a setting's value is a number; yes and no are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
