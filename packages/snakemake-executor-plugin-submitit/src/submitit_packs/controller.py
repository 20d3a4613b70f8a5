"""Members in, ends out: packs are submitted, watched, and their lost members packed again.

The controller holds nothing that the disk does not hold. Before a pack is submitted, the ledger and
the plan are written; after it, job.json. A controller that is started again finds every pack in the
ledger and its job by its id, or by its name if the one before died in between, and submits none a
second time.
"""

import contextlib
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
# A queue that took no job is tried again after this time, and each further time after twice as
# long, or as soon as a job of ours in it ends.
FULL_S = 60.0
LONGEST_FULL_S = 960.0
LOCK = "controller.lock"
FORGOTTEN = ""  # the id of a job that ran and that the batch system no longer knows


@dataclass(frozen=True)
class Outcome:
    """End of a member, for its user."""

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
    results: frozenset[str] = frozenset()  # members that had a result when this was opened
    status: JobStatus | None = None
    over_since_s: float | None = None
    unknown_since_s: float | None = None
    is_recorded: bool = True  # whether job.json has the job
    is_requeued: bool = False  # whether job.json says that it waits to run again


class Controller:
    """The controller of a directory of packs. Its methods may be called from several threads."""

    def __init__(
        self,
        root: Path,
        site: Site,
        settings: planner.Settings,
        scheduler: Scheduler,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root.resolve()
        self.site, self.settings, self.scheduler, self.say = site, settings, scheduler, say
        self.clock = clock  # seconds since 1970
        self._lock = threading.RLock()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._hold_alone()
            self.ledger = Ledger(self.root)
            self._mend()
        except OSError as error:
            raise PackError(f"packs cannot be kept in {self.root}: {error.strerror}") from None
        self.flights: dict[str, Flight] = {}
        self.closing: dict[str, Flight] = {}  # whose members have all ended, and the job has not
        self.pending: dict[str, tuple[Member, int]] = {}  # by key, with the tries so far
        self._pending_since_s: float | None = None
        self._outcomes: list[Outcome] = []
        self._waiting = ""
        self._full: dict[str, tuple[float, float]] = {}  # queues: when to try again, pause in s
        self._unreported: dict[str, Outcome] = {}  # passed on, but not yet in the ledger
        self.no_answer = 0  # cycles in a row that the batch system, or the disk, did not let end

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
        self._pending_since_s = self._pending_since_s or self.clock()

    def _attach(self, member: Member, place: Place, anew: bool) -> bool:
        flight = self.flights.get(place.pack) or self._open(place.pack)
        if flight is None:
            return False
        result = flight.directory.result(member.key) if member.key in flight.results else None
        if _runs_again(result, anew):
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
        job_id = job["job_id"] if job else None
        return Flight(directory, pack, job_id, {}, frozenset(directory.keys()))

    # ------------------------------------------------------------------ one cycle

    def cycle(self) -> list[Outcome]:
        """Look once at everything: the ends since the last time. Submits what can be."""
        with self._lock:
            self._collect()
            try:
                self._write_reported()
                self._look()
                self._collect()  # what ended before its job did
                self._settle()
                self._submit()
                self.no_answer = 0
            except NoAnswer as error:
                self._postpone(f"{self.scheduler.name} does not answer", str(error))
            except OSError as error:
                self._postpone(f"{self.root} cannot be written", _words_of(error))
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def _postpone(self, what: str, why: str) -> None:
        """Say that this cycle goes on in the next one; the more cycles, the more seldom."""
        self.no_answer += 1
        if self.no_answer & (self.no_answer - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            times = f", {self.no_answer} times" if self.no_answer > 1 else ""
            self.say(f"{what}{times}: {why}")

    def reported(self, outcomes: Sequence[Outcome]) -> None:
        """Say that these ends were passed on: they are no more the controller's."""
        with self._lock:
            self._unreported |= {outcome.key: outcome for outcome in outcomes}
            with contextlib.suppress(OSError):  # the next cycle tries again, and says why
                self._write_reported()

    def _write_reported(self) -> None:
        ends = self._unreported.values()
        self.ledger.report({o.key: (o.ok, o.words.partition("\n")[0], o.result) for o in ends})
        self._unreported = {}

    @property
    def is_idle(self) -> bool:
        """True if no member is pending or in a pack."""
        return not (self.pending or self.flights or self._outcomes)

    def _collect(self) -> None:
        """Take the final results that there are: one listing a pack."""
        for flight in self.flights.values():
            for key in set(flight.directory.keys()) & flight.members.keys():
                result = flight.directory.result(key)
                if result and result.is_final:
                    self._end(flight, key, result)
        for flight in [f for f in self.flights.values() if not f.members]:
            del self.flights[flight.pack.id]
            self.closing[flight.pack.id] = flight
            flight.over_since_s = self.clock()

    def _leave(self, flight: Flight) -> None:
        """A pack is over: its queue may take another."""
        for flights in (self.flights, self.closing):
            flights.pop(flight.pack.id, None)
        self._full.pop(flight.pack.queue, None)

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
            if self.clock() - (flight.over_since_s or 0.0) < CLOSING_S:
                return
            self.say(f"{flight.pack.id}: all members have ended, and job {flight.job_id} has not")
            self.scheduler.cancel([flight.job_id or ""])
        self._leave(flight)

    def _find(self) -> None:
        """Find the jobs of packs of which it is not known whether they were submitted."""
        sought = {p for p, f in self.flights.items() if f.job_id is None}
        if not sought:
            return
        jobs = self.scheduler.find(sought)
        for pack in sought:
            flight = self.flights[pack]
            if pack in jobs:
                self._submitted(flight, jobs[pack])
            elif flight.directory.attempt().number:  # it ran, and is forgotten
                flight.job_id = FORGOTTEN
                flight.over_since_s = self.clock()
            else:
                self._send(flight)

    def _note(self, flight: Flight, status: JobStatus) -> None:
        now = self.clock()
        self._note_requeue(flight, status.phase)
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

    def _note_requeue(self, flight: Flight, phase: Phase) -> None:
        """Write down when a job that ran waits to run again, and when it no longer does."""
        was_queued = flight.status is not None and flight.status.phase == Phase.QUEUED
        if phase == Phase.QUEUED and not was_queued:
            flight.is_requeued = flight.directory.note_requeue(self.clock())
        elif phase == Phase.RUNNING and flight.is_requeued:
            flight.directory.note_requeue(None)
            flight.is_requeued = False

    def _settle(self) -> None:
        """Decide about the members of packs whose jobs are over."""
        now = self.clock()
        for flight in list(self.flights.values()):
            if flight.over_since_s is not None and now - flight.over_since_s >= GRACE_S:
                self._close(flight)
                self._leave(flight)

    def _close(self, flight: Flight) -> None:
        directory = flight.directory
        attempt = directory.attempt().number
        directory.close()
        status = flight.status or JobStatus(Phase.UNKNOWN)
        pilot = read_json(directory.path / f"pilot-{attempt}.json") or {}
        began = {*directory.keys(STARTED), *directory.keys()}
        # A pilot that was killed, or whose launcher was, says nothing about the environment.
        is_killed = attempt > 0 and (not pilot or pilot.get("is_launcher_killed", False))
        idle = status.ending in (None, Ending.DONE) and not began and not is_killed
        unknown = status.words if status.phase == Phase.UNKNOWN else ""
        last_words = (unknown or _last_words(directory, pilot)) if idle else ""
        again: Counter[str] = Counter()
        for key, member in flight.members.items():
            place = self.ledger.places.get(key) or Place(flight.pack.id, 0)
            result = directory.result(key)
            if result and result.is_final:
                self._end(replace_members(flight, key), key, result)
                continue
            lost = pilot.get("lost", {}).get(key, "")
            in_line = bool(began) and key not in began
            verdict = reasons.verdict(result, status, place.tries, last_words, lost, in_line)
            if verdict.again:
                again[verdict.reason] += 1
                self._queue(member, place.tries + 1)
            else:
                text = f"{verdict.reason} ({flight.pack.id}, job {flight.job_id})"
                if lines := directory.last_lines(key):
                    text += f"\n{lines}"
                self._outcomes.append(Outcome(key, False, text, result, directory.log(key)))
        for reason, count in again.items():
            self.say(f"{flight.pack.id}: {count} to run again, {reason}")

    # ------------------------------------------------------------------ submission

    def _submit(self) -> None:
        """Plan the pending members, and submit the packs that may go now."""
        if not self.pending:
            return
        waited_s = self.clock() - (self._pending_since_s or 0.0)
        count = Counter(f.pack.queue for f in (self.flights | self.closing).values())
        members = [member for member, _ in self.pending.values()]
        full = {queue for queue, (retry_s, _) in self._full.items() if self.clock() < retry_s}
        planned = planner.plan(members, self.site, self.settings, count, waited_s, full)
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
            pause_s = min(2 * self._full.get(pack.queue, (0, FULL_S / 2))[1], LONGEST_FULL_S)
            self._full[pack.queue] = self.clock() + pause_s, pause_s
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
        self._full.pop(pack.queue, None)
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
            flight.directory.write_job({**job, "submitted_s": self.clock()})
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
        """Cancel every job; the members keep what they have, and may be added again."""
        with self._lock:
            unknown = {p for p, f in self.flights.items() if f.job_id is None}
            jobs = [f.job_id for f in (self.flights | self.closing).values() if f.job_id]
            try:
                jobs += self.scheduler.find(unknown).values() if unknown else ()
                self.scheduler.cancel(jobs)
                left = [(f.directory, key) for f in self.flights.values() for key in f.members]
                self.ledger.report({k: (False, "cancelled", d.result(k)) for d, k in left})
            except NoAnswer as error:
                self.say(f"jobs {', '.join(jobs)} may go on: {error}")
            self.pending.clear()


def in_packs(root: Path, members: Iterable[Member]) -> tuple[set[str], Counter[str]]:
    """The members that `Controller.add` would find in packs, and how many jobs a queue has of them.

    Nothing is written.
    """
    places, keys = Ledger(root).places, set[str]()
    queues: dict[str, str] = {}
    for key in {member.key for member in members} & places.keys():
        directory = PackDirectory(root / places[key].pack)
        pack, job = directory.plan(), directory.job()
        if (pack or job) and not _runs_again(directory.result(key), anew=False):
            keys.add(key)
            queues[directory.id] = pack.queue if pack else ""
    return keys, Counter(queues.values())


def _runs_again(result: Result | None, anew: bool) -> bool:
    """True if a member with this result is packed once more, and not reported as it ended."""
    return result is not None and result.is_final and (anew or result.state != State.OK)


def _lost_its_pilot(flight: Flight, status: JobStatus) -> bool:
    """True if a running job goes on without its first node, as in Slurm, until its walltime."""
    if status.phase != Phase.RUNNING or not 0 < len(status.nodes) < flight.pack.nodes:
        return False
    host = flight.directory.attempt().host
    return bool(host) and host not in status.nodes


def _last_words(directory: PackDirectory, pilot: dict[str, Any]) -> str:
    """Output of a pack that began none of its members."""
    if words := pilot.get("error") or next(iter(pilot.get("lost", {}).values()), ""):
        return str(words)
    logs = sorted((directory.path / FOLDER).rglob("*_log.*"), key=os.path.getmtime)
    said = [words for log in logs if (words := tail(log, 3))]
    return said[-1] if said else f"no member began; see {directory.path / FOLDER}"


def _words_of(error: OSError) -> str:
    """An operating system's error with its file."""
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)


def replace_members(flight: Flight, key: str) -> Flight:
    """A view of a flight with one member, to end it while the flight's are being gone through."""
    return replace(flight, members={key: flight.members[key]})
