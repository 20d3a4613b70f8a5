"""Ranges of a thread that are open at an instant: a stack, for every instant at once.

Push/pop ranges of one thread nest, except that each NVTX domain has a stack of its own, so that
ranges of two domains may cross. Replaying the pushes and pops of a thread gives its stack between
any two of them. Equal stacks share their lower part: they are the nodes of a tree of *frames*,
each a range on top of its parent frame. Without crossings a range has exactly one frame; where a
range is popped from beneath others, those others get new frames without it.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from kvscope.base import limits
from kvscope.base.arraytypes import Int64s
from kvscope.collect.nsys.nullable import NULL, by_value

NONE = -1
"""Stands for no frame or no range."""


@dataclass(frozen=True)
class _Thread:
    """`top[k]` is the frame on top of the stack after the first k boundaries."""

    boundary_ns: Int64s
    top: Int64s


class Nesting:
    """The stacks of all threads, from the ranges' thread, start and end in ns.

    Of ranges with the same interval the first one given is the outermost. A range *contains* an
    interval of its thread if it starts no later and ends no earlier; the *innermost* one that
    does so starts last and, of those, ends first.

    A stack holds at most limits.DEEPEST_STACK ranges; `too_deep` counts those beyond, which
    contain nothing. Raises ValueError if ranges cross more than limits.MOST_CROSSINGS times.
    """

    def __init__(self, thread: Int64s, start: Int64s, end: Int64s) -> None:
        end = np.maximum(start, end)
        replay = _Replay()
        lasting = np.flatnonzero(end > start)
        self._threads = {
            t: replay.thread(lasting[places], start, end) for t, places in by_value(thread[lasting])
        }
        self.too_deep = len(replay.too_deep)
        # The last element of each array is found by index NONE: the bottom of every stack.
        self._start = np.append(start, NULL)
        self._end = np.append(end, np.iinfo(np.int64).max)
        self._range = np.array([*replay.ranges, NONE], np.int64)
        self._parent = np.array([*replay.parents, NONE], np.int64)
        self.range_parent = self._range_parents(thread)
        """For each range the innermost other range that contains it, or NONE."""

    @property
    def frame_range(self) -> Int64s:
        """The range of each frame."""
        return self._range[:-1]

    @property
    def frame_parent(self) -> Int64s:
        """The frame beneath each frame, or NONE; parents come before their children."""
        return self._parent[:-1]

    def innermost(self, thread: Int64s, start: Int64s, end: Int64s) -> Int64s:
        """For each interval the frame of the innermost range that contains it, or NONE."""
        frames = np.full(len(thread), NONE, np.int64)
        for t, places in by_value(thread):
            if t in self._threads:
                frames[places] = self._innermost_on(self._threads[t], start[places], end[places])
        return frames

    def _innermost_on(self, thread: _Thread, start: Int64s, end: Int64s) -> Int64s:
        frames = thread.top[np.searchsorted(thread.boundary_ns, start, side="right")]
        instants = np.flatnonzero(start == end)
        if len(instants):  # a range that ends at the very instant contains it, too
            before = np.searchsorted(thread.boundary_ns, start[instants], side="left")
            frames[instants] = self._later(frames[instants], thread.top[before])
        return self._climb(frames, end)

    def _later(self, open_: Int64s, ending: Int64s) -> Int64s:
        """The later-starting of two frames, for each element."""
        starts_later = self._start[self._range[ending]] >= self._start[self._range[open_]]
        return np.where(starts_later, ending, open_)

    def _climb(self, frames: Int64s, end: Int64s) -> Int64s:
        """The first frame from each one downwards whose range lasts until `end`."""
        climbed = frames.copy()
        short = np.flatnonzero(self._end[self._range[climbed]] < end)
        while len(short):
            climbed[short] = self._parent[climbed[short]]
            short = short[self._end[self._range[climbed[short]]] < end[short]]
        return climbed

    def _range_parents(self, thread: Int64s) -> Int64s:
        start, end = self._start[:-1], self._end[:-1]
        first_frame = np.full(len(start), NONE, np.int64)
        first_frame[self.frame_range[::-1]] = np.arange(len(self.frame_range))[::-1]
        beneath = self._climb(self._parent[first_frame], end)
        bare = np.flatnonzero(first_frame == NONE)  # of no length, or too deep
        beneath[bare] = self.innermost(thread[bare], start[bare], end[bare])
        return self._range[beneath]


class _Replay:
    """Pushes and pops ranges in order of time and keeps every frame that comes up."""

    def __init__(self) -> None:
        self.ranges, self.parents = array("q"), array("q")
        self.depths = array("q", [0])  # of no frame, then of each: ranges on the stack
        self.too_deep: set[int] = set()  # ranges that were pushed on a full stack
        self.crossings = 0

    def thread(self, ranges: Int64s, start: Int64s, end: Int64s) -> _Thread:
        ranges = ranges[np.lexsort((-end[ranges], start[ranges]))]
        rank = np.arange(len(ranges))
        time = np.concatenate([end[ranges], start[ranges]])
        is_push = np.repeat([False, True], len(ranges))
        # At one instant: pops before pushes, of pops the inner first, of pushes the outer first.
        order = np.lexsort((np.concatenate([-rank, rank]), is_push, time))
        top = NONE
        tops = array("q", [top])
        for event in np.concatenate([~ranges, ranges])[order].tolist():
            top = self._push(event, top) if event >= 0 else self._pop(~event, top)
            tops.append(top)
        return _Thread(time[order], np.array(tops))

    def _push(self, range_: int, top: int) -> int:
        depth = self.depths[top + 1]
        if depth == limits.DEEPEST_STACK:
            self.too_deep.add(range_)
            return top
        self.ranges.append(range_)
        self.parents.append(top)
        self.depths.append(depth + 1)
        return len(self.ranges) - 1

    def _pop(self, range_: int, top: int) -> int:
        if self.ranges[top] == range_:
            return self.parents[top]
        if range_ in self.too_deep:
            return top
        crossing = []
        while self.ranges[top] != range_:
            crossing.append(self.ranges[top])
            top = self.parents[top]
        self.crossings += len(crossing)
        if self.crossings > limits.MOST_CROSSINGS:
            most = f"{limits.MOST_CROSSINGS:,} times"
            raise ValueError(f"push/pop ranges of a thread cross each other more than {most}")
        top = self.parents[top]
        for above in reversed(crossing):
            top = self._push(above, top)
        return top
