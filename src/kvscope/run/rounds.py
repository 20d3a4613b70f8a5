"""Engines that are measured together, in complete rounds in random order.

A round serves every engine once; its order is drawn from the campaign's id and the round's number.
Engines that fit in memory together are parked between their turns; others are started for each turn
and end after it. An engine that is killed loses the repeat under way, which its successor measures
in the same round. An engine that fails is left out from then on.
"""

import os
import random
import uuid
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvscope.base import rounds
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.plan.experiment import Experiment
from kvscope.run.attempt import read_session, repeats_of
from kvscope.run.engines import ParkedEngine, Zygote
from kvscope.run.link import Lost
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, hold_lock
from kvscope.run.progress import Tell, ignore
from kvscope.tables.runfile import LOG_FILE

# An engine that ends without a word is forked again, but not for ever.
MOST_LOSSES = 3
# Engines that are built and warmed up at the same time.
AT_A_TIME = len(os.sched_getaffinity(0))
ROUND, PROFILED = "round", "profiled"


@dataclass(frozen=True)
class Member:
    """An experiment that is measured, and the directory of its attempt, with experiment.yaml."""

    experiment: Experiment
    directory: Path


@contextmanager
def hold_locks(members: Iterable[Member]) -> Iterator[None]:
    """Hold the supervisor's locks of the members, without which their engines end."""
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(hold_lock(member.directory, SUPERVISOR_LOCK))
        yield


class Group:
    """The members' engines, from the beginning of a `with` block to its end.

    The caller holds the members' locks (`hold_locks`). `failed` has the errors of the members that
    are left out, by name; `parked` is false if engines stand one at a time. `tell` takes the
    progress of the engine that is waited for.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        zygote: Zygote,
        id_: str | None = None,
        parked: bool = True,
        tell: Tell = ignore,
    ) -> None:
        self.members = dict(members)
        self.id = id_ or uuid.uuid4().hex[:12]
        self.failed: dict[str, KvscopeError] = {}
        self._zygote, self._parked, self._tell = zygote, parked, tell
        self._engines: dict[str, ParkedEngine] = {}
        self._losses: dict[str, int] = defaultdict(int)  # one after another

    def __enter__(self) -> Self:
        try:
            if self._parked:
                self._fork_all()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._kill()
        for engine in self._engines.values():
            engine.close()

    @property
    def active(self) -> list[str]:
        """The members that have not failed."""
        return [name for name in self.members if name not in self.failed]

    def order(self, number: int) -> Sequence[str]:
        """The members' names in the order in which a round serves them."""
        return random.Random(f"{self.id} {number}").sample(list(self.members), len(self.members))

    def serve_round(self, number: int) -> None:
        """Measure the repeat of each member that this round does not have yet."""
        for place, name in enumerate(self.order(number)):
            measured_in = {ROUND: {"campaign": self.id, "number": number, "place": place}}
            while name in self.active and number not in self.rounds_of(name):
                self.serve(name, measured_in)

    def serve(self, name: str, measured_in: Mapping[str, Any]) -> bool:
        """Measure one repeat; false if the engine was lost with it, and was forked again."""
        try:
            if not self._parked:
                self._fork(name)
                self._engines[name].await_ready(self._tell)
            self._engines[name].serve(dict(measured_in), self._tell)
            if not self._parked:
                self._engines[name].end()
        except Lost as lost:
            self._replace(name, lost)
            return False
        self._losses[name] = 0
        return True

    def rounds_of(self, name: str, numbers: Container[int] | None = None) -> set[int]:
        """The campaign's rounds that have a repeat of the member, of these numbers or of all."""
        return {entry[ROUND]["number"] for entry in self._entries(name, numbers)}

    def finish(self) -> None:
        """Let all engines end, with complete records, also those of lost engines."""
        for name in self.active:
            if self._parked:
                with suppress(Lost):
                    self._engines[name].end()
            if error := _error(self.members[name].directory):
                self.failed[name] = error

    def measured(self, numbers: Container[int] | None = None) -> rounds.Rounds:
        """The duration of every repeat in these of the campaign's rounds, in s, and its waiting."""
        rows = [(name, entry) for name in self.active for entry in self._entries(name, numbers)]
        return rounds.Rounds(
            experiment=[name for name, _ in rows],
            round=[entry[ROUND]["number"] for _, entry in rows],
            time=[entry["duration_s"] for _, entry in rows],
            waiting=[_waiting(entry) for _, entry in rows],
        )

    def _entries(self, name: str, numbers: Container[int] | None = None) -> list[dict[str, Any]]:
        """The entries of the member's finished repeats that this campaign measured in rounds."""
        entries = repeats_of(read_session(self.members[name].directory))
        ours = [entry for entry in entries if (entry.get(ROUND) or {}).get("campaign") == self.id]
        return [e for e in ours if numbers is None or e[ROUND]["number"] in numbers]

    def _fork_all(self) -> None:
        starting: deque[str] = deque()
        for name in self.members:
            if len(starting) == AT_A_TIME:
                self._await_ready(starting.popleft())
            self._fork(name)
            starting.append(name)
        for name in starting:
            self._await_ready(name)

    def _fork(self, name: str) -> None:
        member = self.members[name]
        engine = self._zygote.fork(member.directory, member.experiment.device.threads)
        self._engines[name] = engine

    def _replace(self, name: str, lost: Lost) -> None:
        """Fork a lost engine again; the member has failed if it said why, or was lost too often."""
        directory = self.members[name].directory
        self._losses[name] += 1
        self._engines[name].close()
        with hold_lock(directory, SESSION_LOCK):  # until the lost engine has ended
            error = _error(directory) or (KvscopeError(lost.reason) if lost.reason else None)
        if error is None and self._losses[name] > MOST_LOSSES:
            error = KvscopeError(f"the engine was lost {MOST_LOSSES} times; see {LOG_FILE}")
        if error is not None:
            self.failed[name] = error
        elif self._parked:
            self._fork(name)
            self._await_ready(name)

    def _await_ready(self, name: str) -> None:
        try:
            self._engines[name].await_ready(self._tell)
        except Lost as lost:
            self._replace(name, lost)

    def _kill(self) -> None:
        for engine in self._engines.values():
            engine.kill()


def _error(directory: Path) -> KvscopeError | None:
    """Why the measured process of an attempt gave up, in its own words."""
    session = read_session(directory)
    if not (reason := session.get("reason")):
        return None
    return BadInput(reason) if session.get("bad_input") else KvscopeError(reason)


def _waiting(entry: Mapping[str, float | None]) -> float:
    ran_s, waited_s = entry.get("ran_s"), entry.get("waited_s")
    return 0.0 if ran_s is None or waited_s is None else rounds.waiting(ran_s, waited_s)
