"""A watcher of a replay: it sees the state of the engine before the schedule moves on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.judge.twin.requests import Request
    from kvscope.judge.twin.twin import Twin


class Watcher:
    """Sees a replay as it goes; each method is called with the state that it is named by.

    A package's watcher overrides what it wants to see, and changes nothing.
    """

    def looked_up(self, twin: "Twin", request: "Request") -> None:
        """A waiting request was looked up in the prefix cache: `request.found`, `request.hit`.

        It has no other blocks yet. The request is admitted, or begins to be loaded.
        """

    def gives_back(self, twin: "Twin", request: "Request") -> None:
        """A request is about to give its blocks back: it was preempted, aborted or ended."""

    def scheduled(self, twin: "Twin") -> None:
        """The schedule of a pass is complete: requests have their blocks, others wait."""

    def computed(self, twin: "Twin") -> None:
        """A pass was computed: requests that ended with it have given their blocks back."""
