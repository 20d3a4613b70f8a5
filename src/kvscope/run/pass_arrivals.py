"""Requests that come, and are aborted, before passes of the engine, whatever the time is."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvscope.workload.requests import Request

if TYPE_CHECKING:
    from kvscope.engine.port import Engine


class PassArrivals:
    """The requests with an `arrival_pass` that have not come yet, and those to be aborted."""

    def __init__(self, requests: Sequence[Request]) -> None:
        came = [(one.arrival_pass, one) for one in requests if one.arrival_pass is not None]
        left = [(one.abort_pass, one.request_id) for one in requests if one.abort_pass is not None]
        self._due = deque(sorted(came, key=lambda pair: pair[0]))
        self._aborts = deque(sorted(left, key=lambda pair: pair[0]))
        self._skipped = 0  # passes of the workload that there were not, as no request was there

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
