"""Who holds the blocks that were found in the prefix cache, followed through a run's tables."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from kvscope.arraytypes import Bools, Ints
from kvscope.sharing import BlockContent, Holders

Steps = dict[int, list[Any]]
"""What happens while a pass is scheduled, by its step."""


class Sharing:
    """Of each pass the blocks that requests hold beyond one for each, and what follows from them.

    `extra` has one value a pass. `left` has for each preemption, by its place among `victims`, the
    positions of its blocks that others still hold. `in_use` is whether others held the block of
    each row of `hits`, `held` whether anybody held the block of each row of `evictions`.
    """

    def __init__(
        self,
        steps: pd.DataFrame,
        ended: pd.DataFrame,
        victims: pd.DataFrame,
        admitted: pd.DataFrame,
        hits: pd.DataFrame,
        evictions: pd.DataFrame,
    ) -> None:
        self.extra: Ints = np.zeros(len(steps), np.int64)
        self.left: list[list[int]] = [[] for _ in range(len(victims))]
        self.in_use: Bools = np.zeros(len(hits), bool)
        self.held: Bools = np.zeros(len(evictions), bool)
        if hits.empty:
            return
        gone = ended.reset_index().rename(columns={"at": "step"})
        for repeat, passes in steps.groupby("repeat"):
            self._follow(
                passes,
                _by_step(gone, repeat, _REQUEST),
                _by_step(victims, repeat, _REQUEST),
                _by_step(admitted, repeat, _REQUEST),
                _by_step(hits, repeat, _CONTENT),
                _by_step(evictions, repeat, _CONTENT),
            )

    def _follow(
        self,
        passes: pd.DataFrame,
        ended: Steps,
        victims: Steps,
        admitted: Steps,
        hits: Steps,
        evictions: Steps,
    ) -> None:
        holders = Holders()
        for at, step in zip(passes.index, passes["step"].tolist(), strict=True):
            for _, request in ended.get(step, ()):
                holders.release(request)
            for place, request in victims.get(step, ()):
                self.left[place] = holders.shared(request)
                holders.release(request)
            for place, _, *block in evictions.get(step, ()):
                self.held[place] = holders.held(BlockContent(*block))
            for _, request in admitted.get(step, ()):
                holders.admit(request, step)
            for place, request, *block in hits.get(step, ()):
                self.in_use[place] = holders.find(request, BlockContent(*block))
            self.extra[at] = holders.extra


_REQUEST = ["request_id"]
_CONTENT = ["request_id", "owner", "block_position", "cached_step"]


def _by_step(frame: pd.DataFrame, repeat: Any, columns: Iterable[str]) -> Steps:
    """The rows of a repeat by step, each as its place in the table and these columns."""
    found: Steps = defaultdict(list)
    here = np.flatnonzero((frame["repeat"] == repeat).to_numpy())
    rows = frame.iloc[here]
    values = (rows[column].tolist() for column in columns)
    for step, *row in zip(rows["step"].tolist(), here.tolist(), *values, strict=True):
        found[step].append(row)
    return found
