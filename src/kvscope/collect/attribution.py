"""What a stack of ranges says: its path, and the repeat, step and layer it belongs to."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvscope import ranges
from kvscope.collect.arrays import NULL, Bools, Int64s, to_numpy

SEPARATOR = "/"


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

    def are(self, wanted: str) -> Bools:
        """Which of the strings equal `wanted`."""
        equal: Bools = pc.equal(self.values, wanted).to_numpy(zero_copy_only=False)
        return equal[self.code] if len(equal) else np.zeros(len(self.code), np.bool_)

    def to_arrow(self) -> pa.DictionaryArray:
        """The strings as Arrow."""
        return pa.DictionaryArray.from_arrays(pa.array(self.code), self.values)


@dataclass(frozen=True)
class Marks:
    """What kvscope's own ranges say of each range; NULL where it is no such range."""

    repeat: Int64s
    step: Int64s
    layer: Int64s
    warm_up: Bools

    @classmethod
    def of(cls, name: Names, own: Bools, payload: Int64s) -> "Marks":
        """Read the marks from the names and payloads of ranges that are kvscope's `own`."""

        def number(wanted: str) -> Int64s:
            return np.where(own & name.are(wanted), payload, NULL)

        return cls(
            repeat=number(ranges.REPEAT),
            step=number(ranges.FORWARD_PASS),
            layer=number(ranges.LAYER),
            warm_up=own & name.are(ranges.WARM_UP),
        )


class Tree:
    """Nodes that each stand for a range on top of the node's parent (-1 for none).

    `depth`; `path_code` and `paths` (names from the outermost to this one); `repeat`, `step` and
    `layer` of the nearest range that says so, all NULL within a warm-up.
    """

    def __init__(self, parent: Int64s, range_: Int64s, names: Names, marks: Marks) -> None:
        self.depth = _depths(parent)
        levels = _levels(self.depth)
        self.path_code, self.paths = _paths(levels, parent, names.code[range_], names.values)
        warm_up = np.where(marks.warm_up[range_], 1, NULL)
        outside = _inherit(levels, parent, warm_up) == NULL
        self.repeat, self.step, self.layer = (
            np.where(outside, _inherit(levels, parent, own[range_]), NULL)
            for own in (marks.repeat, marks.step, marks.layer)
        )


def _depths(parent: Int64s) -> Int64s:
    depth = np.zeros(len(parent), np.int64)
    nodes = np.flatnonzero(parent >= 0)
    above = parent[nodes]
    while len(nodes):
        depth[nodes] += 1
        above = parent[above]
        nodes, above = nodes[above >= 0], above[above >= 0]
    return depth


def _levels(depth: Int64s) -> list[Int64s]:
    """The nodes of depth 0, of depth 1, and so on."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []


def _inherit(levels: list[Int64s], parent: Int64s, own: Int64s) -> Int64s:
    """A node's own value or, if that is NULL, the one its parent has."""
    values = own.copy()
    for level in levels[1:]:
        values[level] = np.where(own[level] == NULL, values[parent[level]], own[level])
    return values


def _paths(
    levels: list[Int64s], parent: Int64s, name: Int64s, names: pa.Array
) -> tuple[Int64s, pa.Array]:
    """The path of each node, as a code and the distinct paths that codes stand for.

    Ranges by the million share few paths: each distinct one is joined once.
    """
    code = np.zeros(len(parent), np.int64)
    paths = [pa.array([], pa.string())]
    found = 0
    for depth, level in enumerate(levels):
        above = code[parent[level]] if depth else np.zeros(len(level), np.int64)
        keys, places = np.unique(above * len(names) + name[level], return_inverse=True)
        path = names.take(pa.array(keys % len(names)))
        if depth:
            upper = paths[-1].take(pa.array(keys // len(names) - (found - len(paths[-1]))))
            path = pc.binary_join_element_wise(upper, path, SEPARATOR)
        code[level] = found + places
        paths.append(path)
        found += len(path)
    return code, pa.concat_arrays(paths)
