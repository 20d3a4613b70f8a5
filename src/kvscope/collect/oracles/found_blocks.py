"""The blocks that requests found in the prefix cache, which several block tables may have."""

import pandas as pd

Positions = dict[int, int]  # of each block: its place in the request


class FoundBlocks:
    """The rows of a run's `hits` table: what each request found when it last began to run."""

    def __init__(self, hits: pd.DataFrame, preempted: dict[tuple[int, str], list[int]]) -> None:
        self._preempted = preempted
        self._found: dict[tuple[int, str], dict[int, Positions]] = {}
        columns = ["repeat", "request_id", "step", "block", "block_position"]
        for repeat, request, step, block, position in hits[columns].itertuples(index=False):
            of_request = self._found.setdefault((repeat, request), {})
            of_request.setdefault(step, {})[block] = position

    def of(self, repeat: int, request: str, step: int) -> Positions:
        """The blocks that a request of a pass found, and has had since."""
        since = max(
            (at for at in self._preempted.get((repeat, request), ()) if at <= step), default=-1
        )
        found = self._found.get((repeat, request), {})
        last = max((at for at in found if since <= at <= step), default=None)
        return {} if last is None else found[last]
