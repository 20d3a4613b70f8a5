"""Nodes without processes: what a pack's pilot and members do to files, on a virtual clock.

The files are written by `submitit_packs.directory`, in the order in which
`submitit_packs.pilot` and `submitit_packs.member` write them; nothing is computed.
"""

import heapq
import itertools
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from submitit_packs.directory import PLAN, PackDirectory, Result, Start, State, write_json
from submitit_packs.model import Member

sys.path.append(str(Path(__file__).parents[2] / "packages" / "submitit-pbs" / "tests"))
from fake_pbs.cluster import FakePBS
from fake_pbs.server import Server

MINUTE_S = 60


@dataclass
class World:
    """A virtual clock in seconds since 1970, with its future events."""

    now_s: float = 1.75e9
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: itertools.count = field(default_factory=itertools.count)  # type: ignore[type-arg]

    def clock(self) -> float:
        """The time."""
        return self.now_s

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self.events, (time_s, next(self._number), event))

    def advance(self, until_s: float) -> None:
        """Let all happen until a time, and make it that time."""
        while self.events and self.events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self.events)
            event()
        self.now_s = until_s


@dataclass
class Load:
    """Metadata operations of nodes on the shared file system, by node and minute."""

    world: World
    node: str = ""
    by_minute: Counter[tuple[str, int]] = field(default_factory=Counter)

    def note(self, _event: str) -> None:
        """Count an operation of the node at work, if one is."""
        if self.node:
            self.add(1, self.world.now_s)

    def add(self, operations: float, time_s: float) -> None:
        """Count operations at a time."""
        self.by_minute[self.node, int(time_s // MINUTE_S)] += operations  # type: ignore[assignment]

    def add_looks(self, start_s: float, end_s: float, every_s: float) -> None:
        """Count the looks of a running member at the attempt file: one operation each."""
        for minute in range(int(start_s // MINUTE_S), int(end_s // MINUTE_S) + 1):
            first, last = minute * MINUTE_S, (minute + 1) * MINUTE_S
            self.add((min(end_s, last) - max(start_s, first)) / every_s, first)


@dataclass(frozen=True)
class Durations:
    """Seconds that things take on nodes; members take `spread` more or less than expected."""

    startup_s: float = 60.0  # from the job's start to its first member
    between_s: float = 1.5  # from the end of a member to the start of the next one's command
    spread: float = 0.1

    def of(self, member: Member) -> float:
        """Duration of a member in seconds."""
        return member.expected_s * random.Random(member.key).uniform(
            1 - self.spread, 1 + self.spread
        )


class Pilot:
    """A pack in its job."""

    def __init__(self, path: Path, world: World, load: Load, durations: Durations) -> None:
        self.directory, self.world, self.load = PackDirectory(path), world, load
        self.durations = durations
        self.began_s = world.now_s
        pack = self.directory.plan()
        assert pack is not None, f"{path} has no plan"
        self.pack = pack
        self.attempt = self.directory.begin_attempt()
        ended = set(self.directory.keys())
        self.todo = deque(m for m in pack.members if m.key not in ended)
        self.running = 0
        self.end: Callable[[], None] = lambda: None

    def begin(self, nodes: list[str]) -> None:
        """Give each slot a member."""
        for slot in range(self.pack.slots_per_node):
            for node in nodes:
                self.next(node, str(slot))

    def next(self, node: str, gpu: str) -> None:
        """Begin the next member in a slot, or end the job after the last."""
        if not self.todo:
            if not self.running:
                self._finish()
            return
        member = self.todo.popleft()
        now = self.world.now_s
        self.load.node = node
        (
            self.directory.path / PLAN
        ).open().close()  # a member reads the plan, and nothing else of it
        self.directory.result(member.key)
        left_s = self.began_s + self.pack.walltime_s - self.pack.margin_s - now
        if left_s < member.expected_s:
            self._result(member, node, gpu, State.DEFERRED, now)
            self.next(node, gpu)
            return
        self.directory.write_start(member.key, Start(node, gpu, (), now, self.attempt))
        self.directory.log(member.key).open("ab").close()
        self.running += 1
        end_s = now + min(self.durations.of(member), left_s)
        self.world.at(end_s, lambda: self._ended(member, node, gpu, now))

    def _ended(self, member: Member, node: str, gpu: str, start_s: float) -> None:
        self.running -= 1
        self.load.node = node
        self.load.add_looks(start_s, self.world.now_s, self.pack.poll_s)
        self._result(member, node, gpu, State.OK, start_s)
        later_s = self.world.now_s + self.durations.between_s
        self.world.at(later_s, lambda: self.next(node, gpu))

    def _result(self, member: Member, node: str, gpu: str, state: State, start_s: float) -> None:
        code = 0 if state == State.OK else None
        now = self.world.now_s
        result = Result(state, code, node, gpu, (), start_s, now, self.attempt)
        self.directory.write_result(member.key, result)

    def _finish(self) -> None:
        facts: dict[str, Any] = {"attempt": self.attempt, "start_s": self.began_s, "lost": {}}
        facts["end_s"] = self.world.now_s
        write_json(self.directory.path / f"pilot-{self.attempt}.json", facts)
        self.end()


class VirtualServer(Server):  # type: ignore[misc]
    """The fake PBS, whose jobs are pilots on a virtual clock."""

    def __init__(self, directory: Path, world: World, load: Load, durations: Durations) -> None:
        super().__init__(str(directory), world.clock)
        self.world, self.load, self.durations = world, load, durations

    def run_script(self, job: Any) -> None:
        """Begin the pilot that a job's script names."""
        result = re.search(r"-m submitit_packs\.pilot (\S+)", job.script)
        assert result, job.script
        self.load.node = job.assigned[0]
        pilot = Pilot(Path(result[1]), self.world, self.load, self.durations)
        nodes, run = list(job.assigned), Path(self.run_of(job))
        pilot.end = lambda: _write(run / "exit", "0")
        self.world.at(self.world.now_s + self.durations.startup_s, lambda: pilot.begin(nodes))


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def configure(directory: Path, nodes: int, queues: dict[str, Any]) -> None:
    """Make the directory of a fake PBS, with commands in its `bin`."""
    FakePBS(directory, nodes, queues)
