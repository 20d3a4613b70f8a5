"""A campaign: experiments that are measured together, in complete rounds in random order.

Each has an engine that is parked until its turn. A round serves every engine once; its order is
drawn from the campaign's id and the round's number. The number of a repeat is that of its round: an
engine that is killed loses the repeat under way, which its successor measures in the same round.
"""

import random
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kvscope import rounds
from kvscope.errors import BadInput, KvscopeError
from kvscope.plan.experiment import Experiment
from kvscope.run.attempt import read_session, repeats_of
from kvscope.run.engines import ParkedEngine, Zygote
from kvscope.run.link import Lost
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, hold_lock
from kvscope.runfile import LOG_FILE

# An engine that ends without a word is forked again, but not for ever.
MOST_LOSSES = 3


@dataclass(frozen=True)
class Member:
    """An experiment of a campaign, and the directory of its attempt, with its experiment.yaml."""

    experiment: Experiment
    directory: Path


class Campaign:
    """The members' engines, from the beginning of a `with` block to its end.

    `members` are by name, which the results of `measured` have.
    """

    def __init__(self, members: Mapping[str, Member], log: Path, id_: str | None = None) -> None:
        self.members = dict(members)
        self.id = id_ or uuid.uuid4().hex[:12]
        self._zygote = Zygote(next(iter(members.values())).experiment, log)
        self._engines: dict[str, ParkedEngine] = {}
        self._repeats: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self._zygote.end)
        self._stack.callback(self._close)
        with self._stack.pop_all() as stack:  # an exception below ends what has begun
            for name, member in self.members.items():
                stack.enter_context(hold_lock(member.directory, SUPERVISOR_LOCK))
                self._fork(name)
            for name in self.members:
                self._await_ready(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def order(self, number: int) -> Sequence[str]:
        """The members' names in the order in which a round serves them."""
        return random.Random(f"{self.id} {number}").sample(list(self.members), len(self.members))

    def serve_round(self, number: int) -> None:
        """Measure the repeat of each member that this round does not have yet."""
        for place, name in enumerate(self.order(number)):
            while self._repeats[name] <= number:
                self._serve(name, {"campaign": self.id, "number": number, "place": place})

    def finish(self) -> None:
        """Let all engines end, with complete records; a lost one has them, too."""
        for engine in self._engines.values():
            try:
                engine.end()
            except Lost:
                continue

    def measured(self) -> rounds.Rounds:
        """The duration of every repeat so far, in s, and how long it waited."""
        rows = [
            (name, entry)
            for name, member in self.members.items()
            for entry in repeats_of(read_session(member.directory))
        ]
        return rounds.Rounds(
            experiment=[name for name, _ in rows],
            round=[entry["round"]["number"] for _, entry in rows],
            time=[entry["duration_s"] for _, entry in rows],
            waiting=[_waiting(entry) for _, entry in rows],
        )

    def _serve(self, name: str, measured_in: dict[str, str | int]) -> None:
        try:
            self._repeats[name] = self._engines[name].serve(measured_in)
        except Lost:
            self._replace(name)

    def _fork(self, name: str) -> None:
        member = self.members[name]
        engine = self._zygote.fork(member.directory, member.experiment.device.threads)
        self._engines[name] = engine

    def _await_ready(self, name: str) -> None:
        try:
            self._repeats[name] = self._engines[name].await_ready()
        except Lost:
            self._replace(name)

    def _replace(self, name: str) -> None:
        """Fork a lost engine again; raises the reason if it failed by itself, or too often."""
        directory = self.members[name].directory
        for _ in range(MOST_LOSSES):
            self._engines[name].close()
            with hold_lock(directory, SESSION_LOCK):  # until its predecessor has ended
                found = read_session(directory)
            if found.get("reason"):
                raise (BadInput if found.get("bad_input") else KvscopeError)(found["reason"])
            self._fork(name)
            try:
                self._repeats[name] = self._engines[name].await_ready()
            except Lost:
                continue
            return
        raise KvscopeError(f"the engine was lost {MOST_LOSSES} times; see {directory / LOG_FILE}")

    def _close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def _waiting(entry: Mapping[str, float | None]) -> float:
    ran_s, waited_s = entry.get("ran_s"), entry.get("waited_s")
    return 0.0 if ran_s is None or waited_s is None else rounds.waiting(ran_s, waited_s)
