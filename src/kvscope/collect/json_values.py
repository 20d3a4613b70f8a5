"""Validation of values read from JSON. A ValueError names the value and the expected type or range.

Ranges are (least, most), both included. Types are checked because numpy silently converts texts and
fractions to integers.
"""

from array import array
from contextlib import suppress
from typing import Any

import numpy as np

from kvscope.base.arraytypes import Int64s
from kvscope.base.reading import short_repr

Range = tuple[int, int]


def require_choice(known: tuple[str, ...], value: Any, name: str) -> str:
    """The value, if it is a known word."""
    if value not in known:
        raise ValueError(f"{name} is {short_repr(value)}, known are {', '.join(known)}")
    return str(value)


def require_list(value: Any, name: str) -> list[Any]:
    """The value, if it is a list."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {short_repr(value)}, where a list is expected")
    return value


def require_integer(value: Any, name: str, within: Range) -> int:
    """The value, if it is an integer within the range."""
    if type(value) is not int or not within[0] <= value <= within[1]:
        raise ValueError(f"{name} is {short_repr(value)}, where {_due(within)}")
    return value


def require_number(value: Any, name: str, within: tuple[float, float]) -> float:
    """The value as float, if it is a number within the range."""
    if type(value) not in (int, float) or not within[0] <= value <= within[1]:
        expected = f"a number from {within[0]:g} to {within[1]:g} is expected"
        raise ValueError(f"{name} is {short_repr(value)}, where {expected}")
    return float(value)


def require_integers(values: Any, name: str, within: Range) -> Int64s:
    """A list of integers within the range, as an int64 array."""
    integers = to_int64(values, name)
    if not all_within(integers, within):
        strange = integers[(integers < within[0]) | (integers > within[1])][0]
        raise ValueError(f"{name} holds {strange}, where {_due(within)}")
    return integers


def to_int64(values: Any, name: str, small: bool = False) -> Int64s:
    """A list of integers as an int64 array; `small` is faster if most are below 256."""
    if small:
        with suppress(TypeError, ValueError):
            return np.frombuffer(bytes(require_list(values, name)), np.uint8).astype(np.int64)
    try:
        return np.frombuffer(array("q", require_list(values, name)), np.int64)
    except (TypeError, OverflowError):
        raise ValueError(f"{name} holds something else than whole numbers of 64 bits") from None


def all_within(found: Int64s, within: Range) -> bool:
    """Whether all values are within the range."""
    return not len(found) or bool(within[0] <= found.min() and found.max() <= within[1])


def _due(within: Range) -> str:
    return f"a whole number from {within[0]} to {within[1]} is expected"
