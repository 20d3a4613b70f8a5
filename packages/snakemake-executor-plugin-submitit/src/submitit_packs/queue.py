"""A queue and its limits; durations as batch systems write them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Queue:
    """A queue's limits, ends included.

    Attributes
    ----------
    max_jobs
        of one user, queued and running together; None if there is no limit
    tiers
        (nodes, seconds): up to so many nodes, a job may take so long
    preemptable
        whether a job may be ended at any time, and run again
    by_request
        whether it is used only where it is named
    """

    name: str
    min_nodes: int = 1
    max_nodes: int = 10**6
    min_walltime_s: int = 60
    max_walltime_s: int = 366 * 86400
    max_jobs: int | None = None
    tiers: tuple[tuple[int, int], ...] = ()
    preemptable: bool = False
    by_request: bool = False

    def longest_s(self, nodes: int) -> int:
        """The longest walltime of a job with so many nodes, in seconds."""
        for most, walltime_s in self.tiers:
            if nodes <= most:
                return min(walltime_s, self.max_walltime_s)
        return self.max_walltime_s

    def complaint(self, nodes: int, walltime_s: float) -> str | None:
        """Reason why a job does not fit, in words; None if it does."""
        if not self.min_nodes <= nodes <= self.max_nodes:
            return (
                f"{nodes} nodes, and queue {self.name} takes {self.min_nodes} to {self.max_nodes}"
            )
        if walltime_s > self.longest_s(nodes):
            limit = hours(self.longest_s(nodes))
            return f"{hours(walltime_s)} on {nodes} nodes, and queue {self.name} ends at {limit}"
        return None


def hours(time_s: float) -> str:
    """HH:MM:SS of seconds."""
    minutes, second = divmod(round(time_s), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"


def seconds(time: str) -> int:
    """Seconds of HH:MM:SS, MM:SS or D-HH:MM:SS; ValueError for other text."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", time)
    if not match:
        raise ValueError(f"{time!r} is not HH:MM:SS")
    days, hour, minute, second = (int(part or 0) for part in match.groups())
    return ((days * 24 + hour) * 60 + minute) * 60 + second
