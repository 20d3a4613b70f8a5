"""How packs stand, from their files alone: also while no controller runs, and from any shell."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from submitit_packs.directory import RESULT, STARTED, PackDirectory, Result, Start, read_json
from submitit_packs.ledger import Ledger
from submitit_packs.model import Member, Pack

QUEUED, RUNNING = "queued", "running"


@dataclass(frozen=True)
class MemberStatus:
    """How a member stands: queued, running, or its final or last state."""

    member: Member
    pack: str
    state: str
    start: Start | None
    result: Result | None

    @property
    def host(self) -> str:
        """Where it runs or ran; empty if it did not."""
        return self.result.host if self.result else self.start.host if self.start else ""

    @property
    def gpu(self) -> str:
        """Its GPUs."""
        return self.result.gpu if self.result else self.start.gpu if self.start else ""


@dataclass(frozen=True)
class PackStatus:
    """How a pack stands. Its job may be queued, running or over; times are seconds since 1970."""

    pack: Pack
    job_id: str | None
    members: tuple[MemberStatus, ...]
    start_s: float | None
    end_s: float | None

    def node_s(self, now_s: float) -> float:
        """Node-seconds used so far."""
        if self.start_s is None:
            return 0.0
        return self.pack.nodes * ((self.end_s or now_s) - self.start_s)

    def busy_s(self, now_s: float) -> float:
        """Slot-seconds in which a member ran."""
        return sum(
            (m.result.end_s if m.result else now_s) - m.start.start_s
            for m in self.members
            if m.start and (m.result is None or m.result.end_s >= m.start.start_s)
        )


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
            if not todo or pack.end_s is not None:
                continue
            if pack.start_s is None:
                return None
            work_s = sum(self._left_s(m) for m in todo)
            times.append(max(work_s / pack.pack.slots, max(map(self._left_s, todo))))
        return max(times, default=0.0)

    def _left_s(self, status: MemberStatus) -> float:
        ran_s = self.now_s - status.start.start_s if status.start else 0.0
        return max(0.0, status.member.expected_s - ran_s)


def overview(root: Path, keys: Iterable[str] | None = None) -> Overview:
    """How the packs below `root` stand: those of some members, or all. One listing a pack."""
    wanted = None if keys is None else set(keys)
    statuses = [
        status
        for path in packs(root)
        if (status := pack_status(PackDirectory(path)))
        and (wanted is None or wanted & {m.member.key for m in status.members})
    ]
    return Overview(tuple(statuses), time.time())


def packs(root: Path) -> Iterator[Path]:
    """The directories of packs, in the order of the ledger."""
    for pack in Ledger(root).packs:
        if (root / pack).is_dir():
            yield root / pack


def pack_status(directory: PackDirectory) -> PackStatus | None:
    """How a pack stands; None if it was not planned to the end."""
    pack, job = directory.plan(), directory.job()
    if pack is None:
        return None
    attempt = directory.attempt()
    begun, ended = set(directory.keys(STARTED)), set(directory.keys(RESULT))
    pilots = [
        facts
        for path in sorted(directory.path.glob("pilot-*.json"))
        if (facts := read_json(path)) is not None
    ]
    starts = {key: directory.start(key) for key in begun}
    first_s = [f["start_s"] for f in pilots] + [s.start_s for s in starts.values() if s]
    over = any(f["attempt"] == attempt.number for f in pilots) or bool(attempt.stop)
    members = []
    for member in pack.members:
        result = directory.result(member.key) if member.key in ended else None
        start = starts.get(member.key)
        if result and not result.is_final and start and start.attempt > result.attempt:
            result = None  # it runs again
        state = str(result.state) if result else RUNNING if start else QUEUED
        if result is None and over:
            state = "lost" if start else "not begun"
        members.append(MemberStatus(member, pack.id, state, start, result))
    last = [f["end_s"] for f in pilots] + [m.result.end_s for m in members if m.result]
    end_s = max(last) if over and last else None
    return PackStatus(
        pack, job["job_id"] if job else None, tuple(members), min(first_s, default=None), end_s
    )
