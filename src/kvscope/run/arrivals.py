"""When requests come: at a time of their own, or once what they follow has finished."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

from kvscope.workload.requests import Request


class Arrivals:
    """The requests that have not come yet; times are seconds since the repeat's start.

    Those that come before a pass never do so here (`run.pass_arrivals`).
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
        """When the next request comes that does not wait for another."""
        return self._due[0][0]

    def until(self, now_s: float) -> Iterator[tuple[float, Request]]:
        """Take the requests that have come by now, in order, each with the time of its arrival."""
        while self._due and self._due[0][0] <= now_s:
            arrival_s, place = heapq.heappop(self._due)
            yield arrival_s, self._requests[place]

    def finished(self, request_id: str, finished_s: float) -> None:
        """A request has finished: those that followed it alone come after their think time."""
        for place in self._followers.pop(request_id, ()):
            awaited = self._awaited[place]
            awaited.remove(request_id)
            if not awaited:
                heapq.heappush(self._due, (finished_s + self._requests[place].think_s, place))
