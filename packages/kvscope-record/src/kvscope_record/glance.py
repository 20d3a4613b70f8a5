"""Numbers of the last minute of a recording, for `kvscope watch`."""

import time
from dataclasses import dataclass
from pathlib import Path

from kvscope.api.files import reading
from kvscope_record.records import Arrival, Live, Preempted, Sampled, Scheduled, Segment
from kvscope_record.segments import read_segment
from kvscope_record.window import recorded_segments

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
    window_s: float  # at most WINDOW_S; shorter where the newest segments hold less
    age_s: float  # of the newest pass

    @property
    def line(self) -> str:
        """The numbers as a line of text."""
        used = self.blocks_used / self.blocks_total if self.blocks_total else 0.0
        minutes = self.window_s / 60 or 1.0
        rate = self.hit_tokens / self.looked_up_tokens if self.looked_up_tokens else None
        hits = "no prompt looked up" if rate is None else f"{rate:.0%} of prompt tokens cached"
        past = f"{self.age_s:,.0f} s ago: " if self.age_s >= _RECENT_S else ""
        return (
            f"{past}{self.blocks_used}/{self.blocks_total} blocks ({used:.0%}) · "
            f"{self.running} running · {self.waiting} waiting · "
            f"{self.preemptions / minutes:.1f} preemptions/min · {hits} · "
            f"{self.tokens / (minutes * 60):.1f} tokens/s"
        )


def look(directory: Path) -> Glance | None:
    """Look at the newest segments; None before the first pass.

    BadInput if nothing is there, or it is damaged.
    """
    with reading.refusing(directory, "a recording"):
        return _look(directory)


def _look(directory: Path) -> Glance | None:
    paths = recorded_segments(directory)
    prompts: dict[int, int] = {}
    scheduled: list[Scheduled] = []
    sampled: list[Sampled] = []
    preempted: list[Preempted] = []
    total, began_ns, to_utc_ns = 0, 0, 0
    for path in paths[-2:]:  # a segment may have just begun
        for event in read_segment(path):
            if isinstance(event, Segment):
                if total and event.step == 0:  # another server
                    scheduled, sampled, preempted, began_ns = [], [], [], 0
                total, began_ns = event.facts["kv_blocks_total"], began_ns or event.time_ns
                to_utc_ns = event.utc_ns - event.time_ns
            elif isinstance(event, Arrival | Live):
                prompts[event.request] = event.prompt_tokens
            elif isinstance(event, Scheduled):
                scheduled.append(event)
            elif isinstance(event, Sampled):
                sampled.append(event)
            elif isinstance(event, Preempted):
                preempted.append(event)
    if not scheduled:
        return None
    newest = scheduled[-1]
    since = max(began_ns, newest.end_ns - int(WINDOW_S / _NS))
    recent = [pass_ for pass_ in scheduled if pass_.end_ns >= since]
    hits = [hit for pass_ in recent for hit in pass_.hits]
    return Glance(
        blocks_used=total - newest.blocks_free,
        blocks_total=total,
        running=len(newest.requests),
        waiting=newest.waiting,
        passes=len(recent),
        tokens=sum(sum(pass_.tokens) for pass_ in sampled if pass_.end_ns >= since),
        preemptions=sum(event.time_ns >= since for event in preempted),
        hit_tokens=sum(tokens for _, tokens in hits),
        looked_up_tokens=sum(prompts.get(request, 0) for request, _ in hits),
        window_s=(newest.end_ns - since) * _NS,
        age_s=max(0.0, (time.time_ns() - newest.end_ns - to_utc_ns) * _NS),
    )
