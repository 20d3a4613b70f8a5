"""Members in, ends out: packs are submitted, watched, and their lost members packed again.

The controller holds nothing that the disk does not hold. Before a pack is submitted, the ledger and
the plan are written; after it, job.json. A controller that is started again finds every pack in the
ledger and its job by its id, or by its name if the one before died in between, and submits none a
second time.
"""

import errno
import fcntl
import os
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from submitit_packs import planner, reasons
from submitit_packs.directory import (
    STARTED,
    PackDirectory,
    Result,
    State,
    read_json,
    tail,
)
from submitit_packs.errors import BadSettings, NoAnswer, PackError, QueueFull
from submitit_packs.ledger import Ledger, Place
from submitit_packs.model import Member, Pack
from submitit_packs.schedulers import Ending, JobStatus, Phase, Scheduler
from submitit_packs.schedulers.scheduler import FOLDER
from submitit_packs.sites import Site

# After a job's end, results may take a while to be seen on a shared file system.
GRACE_S = 5.0
# A job that the batch system does not know for so long is over; Polaris's `prod` lets jobs with
# wrong parameters vanish without a message.
VANISHED_S = 60.0
# A job whose members have all ended must end, too; after so long it is cancelled.
CLOSING_S = 120.0
CLOSING_TICK_S = 2.0
LOCK = "controller.lock"
FORGOTTEN = ""  # the id of a job that ran and that the batch system no longer knows


@dataclass(frozen=True)
class Outcome:
    """How a member ended, for its user."""

    key: str
    ok: bool
    words: str
    result: Result | None
    log: Path


@dataclass
class Flight:
    """A pack whose job is not over, as far as is known."""

    directory: PackDirectory
    pack: Pack
    job_id: str | None  # None: not known whether it was submitted
    members: dict[str, Member]  # those that have not ended
    status: JobStatus | None = None
    over_since_s: float | None = None
    unknown_since_s: float | None = None
    is_recorded: bool = True  # whether job.json has the job


class Controller:
    """The controller of a directory of packs. Its methods may be called from several threads."""

    def __init__(
        self,
        root: Path,
        site: Site,
        settings: planner.Settings,
        scheduler: Scheduler,
        say: Callable[[str], None] = print,
    ) -> None:
        self.root = root.resolve()
        self.site, self.settings, self.scheduler, self.say = site, settings, scheduler, say
        self._lock = threading.RLock()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._hold_alone()
            self.ledger = Ledger(self.root)
            self._mend()
        except OSError as error:
            raise PackError(f"packs cannot be kept in {self.root}: {error}") from None
        self.flights: dict[str, Flight] = {}
        self.closing: dict[str, Flight] = {}  # whose members have all ended, and the job has not
        self._unreported: list[str] = []  # ends that a full disk kept from the ledger
        self.pending: dict[str, tuple[Member, int]] = {}  # by key, with the tries so far
        self._pending_since_s: float | None = None
        self._outcomes: list[Outcome] = []
        self._waiting = ""
        self.no_answer = 0  # status commands in a row that were not answered

    def _mend(self) -> None:
        if lost := self.ledger.recovered:
            self.ledger.mend()
            self.say(f"{self.ledger.path} was damaged: {len(lost)} packs are found by their plans")

    def _hold_alone(self) -> None:
        """Let no second controller work here, where the file system has locks."""
        self._lock_file = (self.root / LOCK).open("a+")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self._lock_file.seek(0)
                who = self._lock_file.read().strip() or "another process"
                raise PackError(f"{self.root}: {who} submits from here; end it first") from None
            return
        self._lock_file.truncate(0)
        self._lock_file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._lock_file.flush()

    def close(self) -> None:
        """Give the directory free; packs that were submitted go on."""
        self._lock_file.close()

    # ------------------------------------------------------------------ members in

    def add(self, members: Iterable[Member], fresh: Iterable[str] = ()) -> list[str]:
        """Take members over: those that are in a pack already are attached to it.

        A member that ended while no controller looked is not run again, unless it is `fresh`.
        Returns the keys of those that are attached.
        """
        anew, attached = set(fresh), []
        with self._lock:
            for member in members:
                place = self.ledger.places.get(member.key)
                if place and self._attach(member, place, member.key in anew):
                    attached.append(member.key)
                    continue
                try:
                    planner.check(member, self.site, self.settings)
                except BadSettings as error:
                    self._outcomes.append(Outcome(member.key, False, str(error), None, Path()))
                    continue
                self._queue(member, 0)
        return attached

    def _queue(self, member: Member, tries: int) -> None:
        self.pending[member.key] = member, tries
        self._pending_since_s = self._pending_since_s or time.time()

    def _attach(self, member: Member, place: Place, anew: bool) -> bool:
        flight = self.flights.get(place.pack) or self._open(place.pack)
        if flight is None:
            return False
        result = flight.directory.result(member.key)
        if result and result.is_final and (anew or result.state != State.OK):
            return False
        flight.members[member.key] = member
        self.flights[place.pack] = flight
        return True

    def _open(self, pack_id: str) -> Flight | None:
        """A pack of the ledger; None if it was never planned to the end, hence never submitted.

        The job of a plan that is damaged begins no further member, and is waited for.
        """
        directory = PackDirectory(self.root / pack_id)
        pack, job = directory.plan(), directory.job()
        if pack is None and job is None:
            return None
        if pack is None:
            self.say(f"{pack_id}: its plan is damaged; its members run again when its job is over")
            pack = Pack(pack_id, "", 0, 1, 1, 0, ())
        return Flight(directory, pack, job["job_id"] if job else None, {})

    # ------------------------------------------------------------------ one cycle

    def cycle(self) -> list[Outcome]:
        """Look once at everything: the ends since the last time. Submits what can be."""
        with self._lock:
            self._collect()
            try:
                self._look()
                self._collect()  # what ended before its job did
                self._settle()
                self._submit()
                self.no_answer = 0
            except NoAnswer as error:
                self._outage(f"{self.scheduler.name} does not answer", error)
            except OSError as error:  # a full disk, most often
                self._outage("packs cannot be written", error)
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def _outage(self, what: str, error: Exception) -> None:
        """Say what does not work, and is tried again: the 1st, 2nd, 4th, 8th, … time."""
        self.no_answer += 1
        if self.no_answer & (self.no_answer - 1) == 0:
            times = f", {self.no_answer} times" if self.no_answer > 1 else ""
            self.say(f"{what}{times}: {error}")

    def reported(self, outcomes: Sequence[Outcome]) -> None:
        """Say that these ends were passed on: they are no more the controller's."""
        with self._lock:
            self._unreported += [outcome.key for outcome in outcomes]
            try:
                self.ledger.report(self._unreported)
                self._unreported = []
            except OSError as error:
                self.say(f"{self.ledger.path} cannot be written, trying again later: {error}")

    @property
    def is_idle(self) -> bool:
        """Whether no member is pending or in a pack."""
        return not (self.pending or self.flights or self._outcomes)

    def _collect(self) -> None:
        """Take the final results that there are: one listing a pack."""
        for flight in self.flights.values():
            for key in set(flight.directory.keys()) & flight.members.keys():
                result = flight.directory.result(key)
                if result and result.is_final:
                    self._end(flight, key, result)
        for pack in [p for p, f in self.flights.items() if not f.members]:
            self.closing[pack] = flight = self.flights.pop(pack)
            flight.over_since_s = time.time()

    def _end(self, flight: Flight, key: str, result: Result) -> None:
        log, ok = flight.directory.log(key), result.state == State.OK
        text = reasons.words(result, "" if ok else flight.directory.last_lines(key))
        self._outcomes.append(Outcome(key, ok, text, result, log))
        del flight.members[key]

    def _look(self) -> None:
        """Learn of every job from the batch system, by one command."""
        self._find()
        for flight in self.flights.values():
            self._record(flight)
        jobs = {p: f.job_id for p, f in (self.flights | self.closing).items() if f.job_id}
        if jobs:
            for pack, status in self.scheduler.status(jobs).items():
                if pack in self.flights:
                    self._note(self.flights[pack], status)
                else:
                    self._release(self.closing[pack], status)

    def _release(self, flight: Flight, status: JobStatus) -> None:
        """Let go of a pack whose members have all ended, once its job is over."""
        if status.phase in (Phase.RUNNING, Phase.QUEUED):
            if time.time() - (flight.over_since_s or 0.0) < CLOSING_S:
                return
            self.say(f"{flight.pack.id}: all members have ended, and job {flight.job_id} has not")
            self.scheduler.cancel([flight.job_id or ""])
        del self.closing[flight.pack.id]

    def _find(self) -> None:
        """Find the jobs of packs of which it is not known whether they were submitted."""
        sought = {p for p, f in self.flights.items() if f.job_id is None}
        if not sought:
            return
        found = self.scheduler.find(sought)
        for pack in sought:
            flight = self.flights[pack]
            if pack in found:
                self._submitted(flight, found[pack])
            elif flight.directory.attempt().number:  # it ran, and is forgotten
                flight.job_id = FORGOTTEN
                flight.over_since_s = time.time()
            else:
                self._send(flight)

    def _note(self, flight: Flight, status: JobStatus) -> None:
        now = time.time()
        if _lost_its_pilot(flight, status):
            status = replace(status, ending=Ending.NODE_LOST, words="its first node was lost")
        flight.status = status
        flight.over_since_s = flight.over_since_s if status.phase == Phase.ENDED else None
        if status.phase == Phase.ENDED:
            flight.over_since_s = flight.over_since_s or now
        elif status.phase == Phase.UNKNOWN:
            flight.unknown_since_s = flight.unknown_since_s or now
            if now - flight.unknown_since_s >= VANISHED_S:
                flight.over_since_s = flight.unknown_since_s
        elif status.ending is not None:  # it will never start, or goes on in vain
            self.scheduler.cancel([flight.job_id or ""])
            flight.over_since_s = now - GRACE_S
        else:
            flight.unknown_since_s = None

    def _settle(self) -> None:
        """Decide about the members of packs whose jobs are over."""
        now = time.time()
        for flight in list(self.flights.values()):
            if flight.over_since_s is not None and now - flight.over_since_s >= GRACE_S:
                self._close(flight)
                del self.flights[flight.pack.id]

    def _close(self, flight: Flight) -> None:
        directory = flight.directory
        attempt = directory.attempt().number
        directory.close()
        status = flight.status or JobStatus(Phase.UNKNOWN)
        pilot = read_json(directory.path / f"pilot-{attempt}.json") or {}
        began = {*directory.keys(STARTED), *directory.keys()}
        idle = status.ending in (None, Ending.DONE) and not began
        last_words = _last_words(directory, pilot) if idle else ""
        again: Counter[str] = Counter()
        for key, member in flight.members.items():
            place = self.ledger.places.get(key) or Place(flight.pack.id, 0)
            result = directory.result(key)
            if result and result.is_final:
                self._end(replace_members(flight, key), key, result)
                continue
            lost = pilot.get("lost", {}).get(key, "")
            found = reasons.verdict(result, status, place.tries, last_words, lost)
            if found.again:
                again[found.reason] += 1
                self._queue(member, place.tries + 1)
            else:
                text = f"{found.reason} ({flight.pack.id}, job {flight.job_id})"
                if lines := directory.last_lines(key):
                    text += f"\n{lines}"
                self._outcomes.append(Outcome(key, False, text, result, directory.log(key)))
        for reason, count in again.items():
            self.say(f"{flight.pack.id}: {count} to run again, {reason}")

    # ------------------------------------------------------------------ submission

    def _submit(self) -> None:
        """Plan what is pending, and submit the packs that may go now."""
        if not self.pending:
            return
        waited_s = time.time() - (self._pending_since_s or 0.0)
        count = Counter(f.pack.queue for f in (self.flights | self.closing).values())
        members = [member for member, _ in self.pending.values()]
        planned = planner.plan(members, self.site, self.settings, count, waited_s)
        for pack in planned.packs:
            if not self._launch(pack):
                return
        waiting = next(iter(planned.waiting.values()), "")
        if waiting and waiting != self._waiting:
            self.say(f"{len(planned.waiting)} members: {waiting}")
        self._waiting = waiting
        if not self.pending:
            self._pending_since_s = None

    def _launch(self, pack: Pack) -> bool:
        """Ledger, plan, submit, job.json; whether the queue may take more."""
        tries = {m.key: self.pending[m.key][1] for m in pack.members}
        directory = PackDirectory(self.root / pack.id)
        self.ledger.reserve(pack.id, tries)
        directory.write_plan(pack)
        flight = Flight(directory, pack, None, {m.key: m for m in pack.members})
        self.flights[pack.id] = flight
        for key in tries:
            del self.pending[key]
        return self._send(flight)

    def _send(self, flight: Flight) -> bool:
        """Submit a pack; its members fail if it is refused, and wait if the queue is full."""
        pack = flight.pack
        try:
            job_id = self.scheduler.submit(pack, flight.directory)
        except QueueFull as error:
            self.say(f"queue {pack.queue} is full, trying again later: {error}")
            for key, member in flight.members.items():
                self._queue(member, self.ledger.places[key].tries)
            del self.flights[pack.id]
            shutil.rmtree(flight.directory.path, ignore_errors=True)
            return False
        except NoAnswer:
            raise
        except PackError as error:
            text = f"submission refused: {error}"
            self.say(f"{pack.id} ({len(flight.members)} members): {text}")
            log = flight.directory.path
            self._outcomes += [Outcome(k, False, text, None, log) for k in flight.members]
            del self.flights[pack.id]
            return True
        self._submitted(flight, job_id)
        self.say(
            f"{pack.id}: {self.scheduler.name} job {job_id}, {len(pack.members)} members on "
            f"{pack.nodes} nodes x {pack.slots_per_node} slots for {pack.walltime_s // 60} min"
            + (f" in {pack.queue}" if pack.queue else "")
        )
        return True

    def _submitted(self, flight: Flight, job_id: str) -> None:
        flight.job_id, flight.is_recorded = job_id, False
        self._record(flight)

    def _record(self, flight: Flight) -> None:
        if not flight.is_recorded:
            job = {"cluster": self.scheduler.name, "job_id": flight.job_id}
            flight.directory.write_job({**job, "submitted_s": time.time()})
            flight.is_recorded = True

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Wait until the jobs whose members have all ended are over; cancel one that goes on."""
        until = time.monotonic() + CLOSING_S
        with self._lock:
            while self.closing:
                jobs = {p: f.job_id or "" for p, f in self.closing.items()}
                try:
                    for pack, status in self.scheduler.status(jobs).items():
                        self._release(self.closing[pack], status)
                except NoAnswer as error:
                    if time.monotonic() > until:
                        self.say(f"jobs {', '.join(jobs.values())} may go on: {error}")
                        return
                if self.closing:
                    time.sleep(CLOSING_TICK_S)

    def cancel(self) -> None:
        """Cancel every job; the members keep what they have."""
        with self._lock:
            unknown = {p for p, f in self.flights.items() if f.job_id is None}
            jobs = [f.job_id for f in (self.flights | self.closing).values() if f.job_id]
            try:
                jobs += self.scheduler.find(unknown).values() if unknown else ()
                self.scheduler.cancel(jobs)
            except NoAnswer as error:
                self.say(f"jobs {', '.join(jobs)} may go on: {error}")
            self.pending.clear()


def _lost_its_pilot(flight: Flight, status: JobStatus) -> bool:
    """Whether a running job goes on without its first node, as Slurm's do, until its walltime."""
    if status.phase != Phase.RUNNING or not 0 < len(status.nodes) < flight.pack.nodes:
        return False
    host = flight.directory.attempt().host
    return bool(host) and host not in status.nodes


def _last_words(directory: PackDirectory, pilot: dict[str, Any]) -> str:
    """What a pack said that began none of its members."""
    if words := pilot.get("error") or next(iter(pilot.get("lost", {}).values()), ""):
        return str(words)
    logs = sorted((directory.path / FOLDER).rglob("*_log.*"), key=os.path.getmtime)
    said = [words for log in logs if (words := tail(log, 3))]
    return said[-1] if said else f"no member began; see {directory.path / FOLDER}"


def replace_members(flight: Flight, key: str) -> Flight:
    """A view of a flight with one member, to end it while the flight's are being gone through."""
    return replace(flight, members={key: flight.members[key]})
