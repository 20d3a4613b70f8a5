"""Arrays of integers that may be null: one value stands for null."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvscope.base.arraytypes import Int64s

NULL = -(1 << 63)
"""Stands for null in an integer array; no time, id or payload takes this value."""


def to_numpy(array: pa.Array) -> Int64s:
    """An Arrow integer array as int64, NULL for null."""
    filled: Int64s = array.cast(pa.int64()).fill_null(NULL).to_numpy(zero_copy_only=False)
    return filled


def to_arrow(values: npt.NDArray[Any], type_: pa.DataType) -> pa.Array:
    """An integer array as Arrow of the given type, null for NULL."""
    return pa.array(values, pa.int64(), mask=values == NULL).cast(type_)


def take(values: Int64s, places: Int64s) -> Int64s:
    """`values[places]`, NULL where the place is negative."""
    if not len(values):
        return np.full(len(places), NULL)
    return np.where(places >= 0, values[places], NULL)


def by_value(values: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Each distinct value, ascending, and the places that have it, ascending."""
    order = np.argsort(values, kind="stable")
    distinct, first = np.unique(values[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, first[1:]), strict=len(distinct) > 0)
