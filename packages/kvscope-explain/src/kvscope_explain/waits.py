"""Causes of any wait of a request: those by which passes refused the first of the queue."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvscope_explain.causes import NEXT_PASS, UNKNOWN
from kvscope_explain.refusals import TOLERANCE_S, Refusal


@dataclass(frozen=True)
class Wait:
    """Seconds of a wait with one cause: the requests that it waited behind, longest first.

    `behind` is empty where the request is the first of the queue itself. `free` are the most
    blocks that were free, `needed` those that the first of the queue lacked then; `again` is the
    share of its passes' tokens that were computed again.
    """

    cause: str
    seconds: float
    passes: int = 0
    behind: tuple[str, ...] = ()
    needed: int = 0
    free: int = 0
    running: int = 0
    tokens: int = 0
    again: float = 0.0


class Waits:
    """Causes of any wait of a request between two times, by the refusals of passes."""

    def __init__(
        self, refusals: Sequence[Refusal | None], starts_s: list[float], again: list[int]
    ) -> None:
        self._refusals, self._starts_s, self._again = refusals, starts_s, again

    def between(
        self, request_id: str, start_s: float, end_s: float, first: str = NEXT_PASS
    ) -> list[Wait]:
        """Causes of a wait, the longest first; `first` is that of the time until the next pass."""
        if end_s <= start_s:
            return []
        begin = bisect_right(self._starts_s, start_s + TOLERANCE_S)
        stop = bisect_left(self._starts_s, end_s - TOLERANCE_S)
        if begin and self._starts_s[begin - 1] >= start_s - TOLERANCE_S and first == NEXT_PASS:
            begin -= 1  # it came as the pass began
        until_s = self._starts_s[begin] if begin < stop else end_s
        waits = [Wait(first, max(0.0, until_s - start_s))]
        waits += self._of_passes(request_id, begin, stop, max(until_s, start_s), end_s)
        return sorted((w for w in waits if w.seconds > 0), key=lambda w: -w.seconds)

    def _of_passes(
        self, request_id: str, begin: int, stop: int, start_s: float, end_s: float
    ) -> Iterator[Wait]:
        """One wait for each cause of these passes, own and behind others apart."""
        seconds: dict[tuple[str, bool], float] = defaultdict(float)
        refused: dict[tuple[str, bool], list[Refusal]] = defaultdict(list)
        behind: dict[tuple[str, bool], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        again: dict[tuple[str, bool], int] = defaultdict(int)
        for step in range(begin, stop):
            until_s = self._starts_s[step + 1] if step + 1 < stop else end_s
            took_s, start_s = until_s - start_s, until_s
            refusal = self._refusals[step] if step < len(self._refusals) else None
            cause = refusal.cause if refusal else UNKNOWN
            key = cause, refusal is not None and refusal.request_id != request_id
            seconds[key] += took_s
            if refusal is not None:
                refused[key].append(refusal)
                again[key] += self._again[step]
                behind[key][refusal.request_id] += took_s
        for key, took_s in seconds.items():
            rows = refused[key]
            nearest = max(rows, key=lambda row: row.free, default=None)
            heads = sorted(behind[key], key=lambda name: -behind[key][name])
            yield Wait(
                key[0],
                took_s,
                len(rows),
                tuple(heads) if key[1] else (),
                nearest.needed if nearest else 0,
                nearest.free if nearest else 0,
                max((row.running for row in rows), default=0),
                max((row.tokens for row in rows), default=0),
                again[key] / max(1, sum(row.tokens for row in rows)),
            )
