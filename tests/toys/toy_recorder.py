"""Records the table of `toy_table`."""

from collections.abc import Iterable, Mapping
from typing import Any

from kvscope.engine.added import RowRecorder, Seconds
from kvscope.engine.observer import ObservedPass
from kvscope.engine.request_ids import external_id


class Requests(RowRecorder):
    """A row a request of each pass, as the scheduler has it once the pass is scheduled."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.found: list[Mapping[str, Any]] = []

    def arrived(self, time_ns: int, request: Any) -> None:
        """A request has come."""
        self.requests[request.request_id] = request

    def scheduled(self, one: ObservedPass) -> None:
        """A pass has been scheduled."""
        for name in one.scheduled.num_scheduled_tokens:
            request = self.requests[name]
            self.found.append(
                {
                    "step": one.step,
                    "request_id": external_id(name),
                    "priority": request.priority,
                    "computed_tokens": request.num_computed_tokens,
                }
            )

    def rows(self, seconds: Seconds) -> Iterable[Mapping[str, Any]]:
        """All of them."""
        return self.found
