"""Attribution of stacks of NVTX ranges: their path, repeat, step and layer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvscope.base import limits, ranges
from kvscope.base.arraytypes import Bools, Int64s
from kvscope.collect.nsys.nesting import NONE, Nesting
from kvscope.collect.nsys.nullable import NULL, to_arrow, to_numpy

SEPARATOR = "/"
MORE = "…"
"""Stands in a path for names that are left out."""


@dataclass(frozen=True)
class Names:
    """A string for each range, as a code into the distinct `values`."""

    code: Int64s
    values: pa.Array

    @classmethod
    def of(cls, strings: pa.Array) -> "Names":
        """Encode plain or dictionary-encoded strings; null becomes the empty string."""
        encoded = strings.cast(pa.string()).fill_null("").dictionary_encode()
        return cls(to_numpy(encoded.indices), encoded.dictionary)

    def equal(self, wanted: str) -> Bools:
        """Mask of the strings that equal `wanted`."""
        equal: Bools = pc.equal(self.values, wanted).to_numpy(zero_copy_only=False)
        return equal[self.code] if len(equal) else np.zeros(len(self.code), np.bool_)

    def to_arrow(self) -> pa.DictionaryArray:
        """The strings as Arrow."""
        return pa.DictionaryArray.from_arrays(pa.array(self.code), self.values)


@dataclass(frozen=True)
class RangeNumbers:
    """Repeat, step and layer numbers of kvscope's own ranges; NULL for other ranges."""

    by_key: Mapping[str, Int64s]
    warm_up: Bools

    @classmethod
    def of(cls, name: Names, own: Bools, payload: Int64s) -> "RangeNumbers":
        """Read the numbers from the names and payloads of ranges that are kvscope's `own`."""

        def number(wanted: str) -> Int64s:
            return np.where(own & name.equal(wanted), payload, NULL)

        named = {"repeat": ranges.REPEAT, "step": ranges.FORWARD_PASS, "layer": ranges.LAYER}
        by_key = {key: number(wanted) for key, wanted in named.items()}
        return cls(by_key, own & name.equal(ranges.WARM_UP))


class RangeTree:
    """Nodes that each stand for a range on top of the node's parent (-1 for none).

    `depth`; `path` (names from the outermost to this one); `numbers`: repeat, step and layer of
    the nearest range that says so, all null within a warm-up. A path that would be longer than
    limits.LONGEST_PATH ends with MORE, and all of them where they take more than
    limits.MOST_PATH_BYTES; `cut` says whose do.
    """

    def __init__(self, parent: Int64s, range_: Int64s, names: Names, numbers: RangeNumbers) -> None:
        self.depth = _depths(parent)
        paths = _Paths(parent, names.code[range_], names.values)
        for level in _levels(self.depth):
            paths.add(level)
        self.path = Names(paths.code, pa.concat_arrays(paths.found)).to_arrow()
        self.cut = paths.cut
        warm_up = np.where(numbers.warm_up[range_], 1, NULL)
        outside = _inherit(parent, warm_up) == NULL
        self.numbers = {
            key: to_arrow(np.where(outside, _inherit(parent, values[range_]), NULL), pa.int32())
            for key, values in numbers.by_key.items()
        }


class Surroundings:
    """The ranges around intervals of threads, from the frames of a nesting and their ranges."""

    def __init__(self, nesting: Nesting, frame_range: Int64s, frames: RangeTree) -> None:
        self._nesting = nesting
        self._columns = {
            **{"nvtx_id": pa.array(frame_range), "nvtx_path": frames.path},
            **frames.numbers,
        }

    def of(self, thread: Int64s, start: Int64s, end: Int64s) -> dict[str, pa.Array]:
        """Context of each interval on its thread: the innermost range, the path, its pass.

        Gives the columns nvtx_id, nvtx_path, repeat, step and layer; null where no range does.
        """
        frame = self._nesting.innermost(thread, start, end)
        places = pa.array(frame, mask=frame == NONE)
        return {name: column.take(places) for name, column in self._columns.items()}


def _depths(parent: Int64s) -> Int64s:
    """Number of ancestors of each node, by pointer doubling."""
    above, depth = parent.copy(), (parent >= 0).astype(np.int64)
    while len(more := np.flatnonzero(above >= 0)):
        depth[more] += depth[above[more]]
        above[more] = above[above[more]]
    return depth


def _levels(depth: Int64s) -> list[Int64s]:
    """The nodes of depth 0, of depth 1, and so on."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []


def _inherit(parent: Int64s, own: Int64s) -> Int64s:
    """A node's own value or, if that is NULL, the nearest that an ancestor has."""
    above, values = parent.copy(), own.copy()
    while len(more := np.flatnonzero((values == NULL) & (above >= 0))):
        values[more] = values[above[more]]
        above[more] = above[above[more]]
    return values


class _Paths:
    """The path of each node, as a `code` into the distinct paths `found`; level after level.

    Ranges by the million share few paths: each distinct one is joined once.
    """

    def __init__(self, parent: Int64s, name: Int64s, names: pa.Array) -> None:
        self._parent, self._name = parent, name
        self._names = pa.concat_arrays([names, pa.array([MORE])])
        self._name_bytes = pc.binary_length(self._names).to_numpy()
        self._room = limits.MOST_PATH_BYTES
        self._upper, self._upper_bytes = None, np.zeros(1, np.int64)  # of the level above
        self._upper_code = self._codes = 0
        self.code = np.zeros(len(parent), np.int64)
        self.cut = np.zeros(len(parent), np.bool_)
        self.found = [pa.array([], pa.string())]

    def add(self, level: Int64s) -> None:
        """Join the paths of nodes whose parents have theirs; those beneath a cut one share it."""
        if self._upper is not None:
            beneath = self.cut[self._parent[level]]
            self.code[level[beneath]] = self.code[self._parent[level[beneath]]]
            self.cut[level[beneath]] = True
            level = level[~beneath]
            upper = self.code[self._parent[level]] - self._upper_code
        else:
            upper = np.zeros(len(level), np.int64)
        name = self._name[level]
        more = len(self._names) - 1
        length = self._upper_bytes[upper] + self._name_bytes[name]
        name = np.where(length > limits.LONGEST_PATH, more, name)
        keys, places, length = self._distinct(upper, name)
        if length.sum() > self._room:
            name = np.full(len(level), more)
            keys, places, length = self._distinct(upper, name)
        self.code[level], self.cut[level] = self._codes + places, name == more
        self._join(*keys)
        self._upper_bytes = length + len(SEPARATOR)
        self._room -= int(length.sum())

    def _distinct(
        self, upper: Int64s, name: Int64s
    ) -> tuple[tuple[Int64s, Int64s], Int64s, Int64s]:
        """The different pairs of an upper path and a name, each one's place, and bytes of each."""
        keys, places = np.unique(upper * len(self._names) + name, return_inverse=True)
        pairs = divmod(keys, len(self._names))
        return pairs, places, self._upper_bytes[pairs[0]] + self._name_bytes[pairs[1]]

    def _join(self, upper: Int64s, name: Int64s) -> None:
        paths = self._names.take(pa.array(name))
        if self._upper is not None:
            upper_paths = self._upper.take(pa.array(upper))
            paths = pc.binary_join_element_wise(upper_paths, paths, SEPARATOR)
        self.found.append(paths)
        self._upper, self._upper_code = paths, self._codes
        self._codes += len(paths)
