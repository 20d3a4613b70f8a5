"""Values found in JSON, held against what is due there; ValueError says in words what is not.

Integers have to be within a range (least, most). That a value is a list or a whole number is
never taken for granted: numpy makes numbers of texts and of fractions without a word.
"""

from array import array
from contextlib import suppress
from typing import Any

import numpy as np

from kvscope.arraytypes import Int64s
from kvscope.reading import short_repr

Range = tuple[int, int]


def one_of(known: tuple[str, ...], value: Any, name: str) -> str:
    """One of the known words."""
    if value not in known:
        raise ValueError(f"{name} is {short_repr(value)}, known are {', '.join(known)}")
    return str(value)


def as_list(value: Any, name: str) -> list[Any]:
    """A list of anything."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {short_repr(value)}, where a list is due")
    return value


def whole(value: Any, name: str, within: Range) -> int:
    """A whole number."""
    if type(value) is not int or not within[0] <= value <= within[1]:
        raise ValueError(f"{name} is {short_repr(value)}, where {_due(within)}")
    return value


def number(value: Any, name: str, within: tuple[float, float]) -> float:
    """A number that need not be whole."""
    if type(value) not in (int, float) or not within[0] <= value <= within[1]:
        due = f"a number from {within[0]:g} to {within[1]:g} is due"
        raise ValueError(f"{name} is {short_repr(value)}, where {due}")
    return float(value)


def whole_numbers(values: Any, name: str, within: Range) -> Int64s:
    """A list of whole numbers as an array."""
    found = integers(values, name)
    if not all_within(found, within):
        strange = found[(found < within[0]) | (found > within[1])][0]
        raise ValueError(f"{name} holds {strange}, where {_due(within)}")
    return found


def integers(values: Any, name: str, small: bool = False) -> Int64s:
    """A list of any whole numbers as an array; most take a byte each if they are `small`."""
    if small:
        with suppress(TypeError, ValueError):
            return np.frombuffer(bytes(as_list(values, name)), np.uint8).astype(np.int64)
    try:
        return np.frombuffer(array("q", as_list(values, name)), np.int64)
    except (TypeError, OverflowError):
        raise ValueError(f"{name} holds something else than whole numbers of 64 bits") from None


def all_within(found: Int64s, within: Range) -> bool:
    """Whether all values are within the range."""
    return not len(found) or bool(within[0] <= found.min() and found.max() <= within[1])


def _due(within: Range) -> str:
    return f"a whole number from {within[0]} to {within[1]} is due"
