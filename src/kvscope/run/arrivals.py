"""Arrivals of requests: at a time, after other requests have finished, or before passes."""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvscope.workload.requests import Request


class Arrivals:
    """The requests that have not come yet; times are seconds since the repeat's start.

    Those that come before a pass do so in `PassArrivals`.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._due: list[tuple[float, int]] = []  # a heap of times and places in `requests`
        self._awaited: dict[int, set[str]] = {}  # by place, the unfinished requests it follows
        self._followers: dict[str, list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            if request.arrival_s is not None:
                self._due.append((request.arrival_s, place))
                continue
            self._awaited[place] = set(request.after)
            for name in request.after:
                self._followers[name].append(place)
        heapq.heapify(self._due)

    def __bool__(self) -> bool:
        return bool(self._due)

    @property
    def next_s(self) -> float:
        """Time of the next arrival that does not depend on other requests."""
        return self._due[0][0]

    def until(self, now_s: float) -> Iterator[tuple[float, Request]]:
        """Take the requests that have come by now, in order, each with the time of its arrival."""
        while self._due and self._due[0][0] <= now_s:
            arrival_s, place = heapq.heappop(self._due)
            yield arrival_s, self._requests[place]

    def finished(self, request_id: str, finished_s: float) -> None:
        """Note that a request has finished; requests that only followed it arrive after their
        think time."""
        for place in self._followers.pop(request_id, ()):
            awaited = self._awaited[place]
            awaited.remove(request_id)
            if not awaited:
                heapq.heappush(self._due, (finished_s + self._requests[place].think_s, place))


if TYPE_CHECKING:
    from kvscope.engine.port import Engine


class PassArrivals:
    """The requests with an `arrival_pass` that have not come yet, and those to be aborted."""

    def __init__(self, requests: Sequence[Request]) -> None:
        came = [(r.arrival_pass, r) for r in requests if r.arrival_pass is not None]
        aborts = [(r.abort_pass, r.request_id) for r in requests if r.abort_pass is not None]
        self._due = deque(sorted(came, key=lambda pair: pair[0]))
        self._aborts = deque(sorted(aborts, key=lambda pair: pair[0]))
        self._skipped = 0  # skipped passes of the workload, in which no request was there

    def __bool__(self) -> bool:
        return bool(self._due)

    def take(self, engine: "Engine") -> Iterator[Request]:
        """Take the requests that come before the engine's next pass, in order.

        If it has none left, there is no pass until one comes: those in between are skipped.
        """
        if self._due and not engine.has_unfinished_requests():
            self._skipped = max(self._skipped, self._due[0][0] - engine.passes)
        while self._due and self._due[0][0] - self._skipped <= engine.passes:
            yield self._due.popleft()[1]

    def take_aborted(self, engine: "Engine") -> Iterator[str]:
        """Take the ids of requests that are aborted before its next pass; some may have ended."""
        while self._aborts and self._aborts[0][0] - self._skipped <= engine.passes:
            yield self._aborts.popleft()[1]
