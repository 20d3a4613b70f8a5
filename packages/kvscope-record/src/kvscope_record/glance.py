"""Numbers of the last minute of a recording, for `kvscope watch`, by the headers of its frames."""

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from kvscope.api.files import reading
from kvscope_record.frames import Header, frames
from kvscope_record.segments import require_readable
from kvscope_record.sessions import recorded_segments

WINDOW_S = 60.0
_RECENT_S = 3.0  # a pass that is this old is not the server's state now
_NS = 1e-9


@dataclass(frozen=True)
class Glance:
    """The newest pass of a recording, and the minute before it."""

    blocks_used: int
    blocks_total: int
    running: int  # requests of the newest pass
    waiting: int  # requests after it was scheduled
    passes: int  # within the window
    tokens: int  # given within the window
    preemptions: int
    hit_tokens: int  # found in the prefix cache by requests that were admitted
    looked_up_tokens: int  # of these requests' prompts
    window_s: float  # at most WINDOW_S and half a second; shorter if the session is
    age_s: float  # of the newest pass

    @property
    def line(self) -> str:
        """The numbers as a line of text."""
        hits = (
            "no prompt looked up"
            if self._hits is None
            else f"{self._hits:.0%} of prompt tokens cached"
        )
        return (
            f"{self._past}{self.blocks_used}/{self.blocks_total} blocks ({self._used:.0%}) · "
            f"{self.running} running · {self.waiting} waiting · "
            f"{self.preemptions / self._minutes:.1f} preemptions/min · {hits} · "
            f"{self.tokens / self._minutes / 60:.1f} tokens/s"
        )

    def fitting(self, columns: int) -> str:
        """The line, or if it is longer than so many columns a shorter one, cut where they end."""
        if len(self.line) <= columns:
            return self.line
        hits = "–" if self._hits is None else f"{self._hits:.0%}"
        return (
            f"{self._past}blocks {self._used:.0%} · run {self.running} · wait {self.waiting} · "
            f"preempted {self.preemptions / self._minutes:.0f}/min · cached {hits} · "
            f"tokens {self.tokens / self._minutes / 60:.0f}/s"
        )[:columns]

    @property
    def _past(self) -> str:
        return f"{self.age_s:,.0f} s ago: " if self.age_s >= _RECENT_S else ""

    @property
    def _used(self) -> float:
        return self.blocks_used / self.blocks_total if self.blocks_total else 0.0

    @property
    def _minutes(self) -> float:
        return self.window_s / 60 or 1.0

    @property
    def _hits(self) -> float | None:
        return self.hit_tokens / self.looked_up_tokens if self.looked_up_tokens else None


class Watcher:
    """Follows a recording: each look reads the headers of the frames that are new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._offset = 0
        self._recent: deque[Header] = deque()  # frames of the last minute

    def look(self) -> Glance | None:
        """The numbers of now; None before the first pass.

        BadInput if nothing is there, or it is damaged.
        """
        with reading.refusing(self._directory, "a recording"):
            paths = recorded_segments(self._directory)
            known = self._path in paths
            # A segment may have just begun.
            for path in paths[paths.index(self._path) if known and self._path else -2 :]:
                self._read(path)
            return self._glance()

    def _read(self, path: Path) -> None:
        if path != self._path:
            require_readable(path)
            self._path, self._offset = path, 0
        for frame in frames(path, self._offset):
            self._offset = frame.after
            if self._recent and self._recent[-1].session != frame.header.session:
                self._recent.clear()
            if frame.header.passes:
                self._recent.append(frame.header)
        if self._recent:
            since = self._recent[-1].last_ns - int(WINDOW_S / _NS)
            while self._recent[0].last_ns < since:
                self._recent.popleft()

    def _glance(self) -> Glance | None:
        if not self._recent:
            return None
        newest = self._recent[-1]
        return Glance(
            blocks_used=newest.blocks_total - newest.blocks_free,
            blocks_total=newest.blocks_total,
            running=newest.running,
            waiting=newest.waiting,
            passes=sum(header.passes for header in self._recent),
            tokens=sum(header.tokens for header in self._recent),
            preemptions=sum(header.preemptions for header in self._recent),
            hit_tokens=sum(header.hit_tokens for header in self._recent),
            looked_up_tokens=sum(header.looked_up_tokens for header in self._recent),
            window_s=(newest.last_ns - self._recent[0].first_ns) * _NS,
            age_s=max(0.0, (time.time_ns() - newest.last_ns - newest.to_utc_ns) * _NS),
        )


def look(directory: Path) -> Glance | None:
    """Look once at a recording."""
    return Watcher(directory).look()
