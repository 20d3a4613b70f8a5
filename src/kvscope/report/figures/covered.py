"""Points of several colours at one place: the covered ones are wider, and show as rings."""

import pandas as pd

POINT, RING = 40, 0.75  # px² of a point, and how much wider each of those under another one is
RINGS = "a ring: other points cover it"
COINCIDE = 0.03  # share by which values differ whose points cover one another


def widen_covered(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The points with their `size` in px², the widest first.

    Of points that cover one another, those of the first colours are wider.
    """
    order = {name: place for place, name in enumerate(dict.fromkeys(points["colour"]))}
    ordered = points.sort_values([x, y])
    apart = ordered[x].diff().ne(0) | (ordered[y].diff() > COINCIDE * ordered[y].abs())
    covering = ordered.assign(rank=ordered["colour"].map(order)).groupby(apart.cumsum())["rank"]
    depth = covering.rank(ascending=False, method="first") - 1
    sizes = POINT * (1 + RING * depth) ** 2
    return points.assign(size=sizes).sort_values("size", ascending=False, ignore_index=True)


def has_rings(points: pd.DataFrame) -> bool:
    """Whether some points were widened."""
    return "size" in points and bool((points["size"] > POINT).any())
