"""State of packs by their files alone: also without a controller, and from any shell."""

import os
import re
import time
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from submitit_packs.directory import (
    RESULT,
    STARTED,
    Attempt,
    PackDirectory,
    Result,
    Start,
    State,
    read_json,
)
from submitit_packs.ledger import End, Ledger
from submitit_packs.model import Member, Pack

QUEUED, RUNNING = "queued", "running"
PILOT = re.compile(r"pilot-\d+\.json")


@dataclass(frozen=True)
class MemberStatus:
    """State of a member: queued, running, or its final or last state."""

    member: Member
    pack: str
    state: str
    start: Start | None
    result: Result | None
    reason: str = ""  # why it ended

    @property
    def start_s(self) -> float | None:
        """Start of the member; None if it was not begun."""
        record = self.result or self.start
        return record.start_s if record else None

    def busy_s(self, now_s: float) -> float:
        """Seconds that it has run, in the present or last attempt."""
        if self.result:
            return self.result.end_s - self.result.start_s
        return now_s - self.start.start_s if self.start else 0.0

    @property
    def host(self) -> str:
        """Host of the member's run; empty if it did not run."""
        return self.result.host if self.result else self.start.host if self.start else ""

    @property
    def gpu(self) -> str:
        """Its GPUs."""
        return self.result.gpu if self.result else self.start.gpu if self.start else ""


@dataclass(frozen=True)
class PackStatus:
    """State of a pack. Its job may be queued, running or over; times are seconds since 1970."""

    pack: Pack
    job_id: str | None
    members: tuple[MemberStatus, ...]
    start_s: float | None
    end_s: float | None
    is_waiting: bool = False  # to start, or to run again

    def node_s(self, now_s: float) -> float:
        """Node-seconds used so far."""
        if self.start_s is None:
            return 0.0
        return self.pack.nodes * ((self.end_s or now_s) - self.start_s)

    def busy_s(self, now_s: float) -> float:
        """Slot-seconds in which a member ran."""
        return sum(member.busy_s(self.end_s or now_s) for member in self.members)


@dataclass(frozen=True)
class Overview:
    """All packs of a directory."""

    packs: tuple[PackStatus, ...]
    now_s: float

    @property
    def members(self) -> dict[str, MemberStatus]:
        """Each member as it stands in the last pack that it was in."""
        return {m.member.key: m for pack in self.packs for m in pack.members}

    @property
    def node_hours(self) -> float:
        """Node-hours used so far."""
        return sum(pack.node_s(self.now_s) for pack in self.packs) / 3600

    @property
    def idle_share(self) -> float | None:
        """Share of the slots' time in which no member ran; None before any ran."""
        slots_s = sum(p.node_s(self.now_s) * p.pack.slots_per_node for p in self.packs)
        busy_s = sum(p.busy_s(self.now_s) for p in self.packs)
        return max(0.0, 1 - busy_s / slots_s) if slots_s else None

    @property
    def left_s(self) -> float | None:
        """Seconds until all are expected to have ended; None while a pack waits for its start."""
        times = []
        for pack in self.packs:
            todo = [m for m in pack.members if m.state in (QUEUED, RUNNING)]
            if todo and pack.is_waiting:
                return None
            if not todo or pack.end_s is not None:
                continue
            work_s = sum(self._left_s(m) for m in todo)
            times.append(max(work_s / pack.pack.slots, max(map(self._left_s, todo))))
        return max(times, default=0.0)

    def _left_s(self, status: MemberStatus) -> float:
        return max(0.0, status.member.expected_s - status.busy_s(self.now_s))


def overview(
    root: Path, keys: Collection[str] | None = None, now_s: float | None = None
) -> Overview:
    """States of the packs below `root`: those of some members, or all.

    Read are the ledger, each pack's plan, one listing a pack, and the files of those members only
    whose end the ledger does not have.
    """
    ledger = Ledger(root)
    statuses = (pack_status(PackDirectory(root / pack), ledger.ends) for pack in ledger.packs)
    wanted = [
        status
        for status in statuses
        if status and (keys is None or any(m.member.key in keys for m in status.members))
    ]
    return Overview(tuple(wanted), time.time() if now_s is None else now_s)


def pack_status(directory: PackDirectory, ends: Mapping[str, End]) -> PackStatus | None:
    """State of a pack; None if its plan is incomplete. `ends` are those of the ledger."""
    pack = directory.plan()
    if pack is None:
        return None
    names = set(os.listdir(directory.path))
    pilots = [
        facts for n in names if PILOT.fullmatch(n) and (facts := read_json(directory.path / n))
    ]
    attempt, job = directory.attempt(), directory.job() or {}
    requeued_s = _requeued_s(job, attempt)
    is_over = any(f["attempt"] == attempt.number for f in pilots) or bool(attempt.stop)
    members = tuple(
        _ended(member, end)
        if (end := ends.get(member.key)) and end.pack == pack.id
        else _member_status(directory, pack, member, names, is_over)
        for member in pack.members
    )
    starts_s = [m.start_s for m in members if m.start_s] + [f["start_s"] for f in pilots]
    last_s = [f["end_s"] for f in pilots] + [m.result.end_s for m in members if m.result]
    if requeued_s is not None:
        members = tuple(map(_queued_again, members))
        if not is_over:  # it was lost, with its pilot
            is_over, last_s = True, [requeued_s]
    start_s = min(starts_s, default=None)
    end_s = max(last_s) if is_over and last_s else None
    is_waiting = requeued_s is not None or start_s is None
    return PackStatus(pack, job.get("job_id"), members, start_s, end_s, is_waiting)


def _requeued_s(job: Mapping[str, Any], attempt: Attempt) -> float | None:
    """Since when a job waits to run again after this attempt; None if it does not."""
    requeued = job.get("requeued")
    if not requeued or requeued["attempt"] != attempt.number:
        return None
    return float(requeued["since_s"])


def _queued_again(status: MemberStatus) -> MemberStatus:
    """A member of a job that waits to run again: what had not ended is begun anew."""
    if status.result and status.result.is_final:
        return status
    return replace(status, state=QUEUED, start=None, result=None)


def _ended(member: Member, end: End) -> MemberStatus:
    """A member whose end was reported. Without a final result, it ended with its job."""
    if end.result and end.result.is_final:
        state, reason = end.result.state, end.result.why
    else:
        state, reason = State.OK if end.ok else State.FAILED, end.reason
    return MemberStatus(member, end.pack, str(state), None, end.result, reason)


def _member_status(
    directory: PackDirectory, pack: Pack, member: Member, names: Container[str], is_over: bool
) -> MemberStatus:
    """A member by its files, of which `names` has those that there are."""
    key = member.key
    start = directory.start(key) if f"{key}{STARTED}" in names else None
    result = directory.result(key) if f"{key}{RESULT}" in names else None
    if result and not result.is_final and start and start.attempt > result.attempt:
        result = None  # it runs again
    state = str(result.state) if result else RUNNING if start else QUEUED
    if result is None and is_over:
        state = "lost" if start else "not begun"
    return MemberStatus(member, pack.id, state, start, result, result.why if result else "")
