"""The schedule of each forward pass, to compare with the batch of a flush."""

import numpy as np
import pandas as pd

from kvscope.collect.kv.flushes import Flush
from kvscope.passes import phase_of_requests

Row = tuple[str, int, int]  # phase, tokens in the cache before the pass, tokens of the pass


class Schedule:
    """The rows of a run's `batch` table by pass; empty for imported runs."""

    def __init__(self, batch: pd.DataFrame) -> None:
        rows = batch.sort_values(["repeat", "step"], kind="stable", ignore_index=True)
        self._rows = rows[["request_id", "phase", "context_tokens", "scheduled_tokens"]]
        places = rows[["repeat", "step"]].to_numpy()
        first = np.flatnonzero(np.append(True, (places[1:] != places[:-1]).any(axis=1)))
        ends = np.append(first[1:], len(rows))
        keys = [tuple(place) for place in places[first].tolist()] if len(rows) else []
        self._spans = dict(zip(keys, zip(first.tolist(), ends.tolist(), strict=True), strict=False))

    def __bool__(self) -> bool:
        """Whether there is any pass."""
        return bool(self._spans)

    def of(self, repeat: int, step: int) -> dict[str, Row]:
        """The scheduled requests of a pass, by id; empty for an unknown pass."""
        first, end = self._spans.get((repeat, step), (0, 0))
        rows = self._rows.iloc[first:end]
        return {name: tuple(row) for name, *row in rows.itertuples(index=False, name=None)}  # type: ignore[misc]

    def difference(self, flush: Flush) -> str:
        """The first difference between a flush and the schedule, in words; empty if they agree."""
        due = self.of(flush.repeat, flush.step)
        heads = zip(flush.phases, flush.context.tolist(), flush.scheduled.tolist(), strict=True)
        found: dict[str, Row] = dict(zip(flush.requests, heads, strict=True))
        for name in sorted({*due, *found}):
            if due.get(name) != found.get(name):
                return f"request {name}: {found.get(name, 'absent')}, scheduled {due.get(name)}"
        phase = phase_of_requests(phase for phase, _, _ in due.values())
        return "" if phase == flush.phase else f"phase {flush.phase}, scheduled {phase}"
