"""Texts of an export: cut where they are endless, whole UTF-8, and found by their ids."""

import numpy as np
import pyarrow as pa

from kvscope.base import limits
from kvscope.base.arraytypes import Int64s
from kvscope.collect.nsys.nullable import NULL


def cut(column: str) -> str:
    """SQL for a column as text of limits.LONGEST_NAME characters at most; '' for null."""
    text, most = f"CAST(COALESCE({column}, '') AS TEXT)", limits.LONGEST_NAME
    part = f"substr({text}, 1, {most - 1}) || '…'"
    return f"CASE WHEN length({text}) > {most} THEN {part} ELSE {text} END"


def is_cut(column: str) -> str:
    """SQL for whether `cut` leaves something of a column out."""
    return f"COALESCE(length(CAST({column} AS TEXT)) > {limits.LONGEST_NAME}, 0)"


def as_utf8(texts: pa.Array) -> pa.Array:
    """The texts; bytes that are no UTF-8, which SQLite does not mind, become U+FFFD."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary()).to_pylist()
        return pa.array([text.decode("utf-8", "replace") for text in raw], pa.string())
    return texts


class Strings:
    """The strings of an export: ascending ids and their values."""

    def __init__(self, ids: Int64s, values: pa.Array) -> None:
        self._ids = ids
        self.values = values

    def places(self, ids: Int64s) -> Int64s:
        """Index into `values` of each id's string; NULL for an unknown id."""
        if not len(self._ids):
            return np.full(len(ids), NULL)
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[places] == ids, places, NULL)

    def lookup(self, ids: pa.Array) -> pa.DictionaryArray:
        """The string of each id; null for a null or unknown id."""
        places = self.places(ids.fill_null(-1).to_numpy(zero_copy_only=False))
        return pa.DictionaryArray.from_arrays(pa.array(places, mask=places == NULL), self.values)
