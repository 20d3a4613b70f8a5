"""From members to packs: nodes × slots × sequence, within a queue's limits.

Members of one shape (GPUs, exclusive or not) share packs. They are dealt to as few packs as the
queue's nodes and the wanted length allow, longest first, so that all packs are about equally long.
A pack's walltime follows from longest-processing-time-first on its slots, which is how its pilot
takes members; one that turns out to be too short defers members and loses nothing.
"""

import heapq
import math
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from submitit_packs.errors import BadSettings
from submitit_packs.model import Member, Pack
from submitit_packs.queue import Queue, hours
from submitit_packs.sites import Site

MINUTE_S = 60
SHORTEST_POLL_S, NODE_POLL_S = 5.0, 2.5
TRIALS = 5  # numbers of nodes, or of packs, that are tried for the least idle slots


@dataclass(frozen=True)
class Settings:
    """Options of packing.

    Attributes
    ----------
    queues
        the queues to use, in order of preference; empty for all of the site's
    length_s
        how long a pack shall take where there is a choice, give or take a quarter; members follow
        one another in a slot until then
    min_nodes, max_nodes
        nodes of one pack at least, where there are members for them, and at most
    min_fill
        share of a pack's slots that must be used; a pack with less waits for more members
    wait_s
        how long it waits before it is submitted anyway
    startup_s, margin_s
        seconds of a job before its first member starts, and kept free at its end
    slack
        the walltime is so many times what is expected, if that is more than one member's timeout
    poll_s
        seconds between two looks of a running member at the attempt file; None for 5 s, and more
        where many members share a node, so that a node makes a look every 2.5 s
    """

    queues: tuple[str, ...] = ()
    length_s: float = 3600.0
    min_nodes: int = 1
    max_nodes: int | None = None
    min_fill: float = 0.5
    wait_s: float = 0.0
    startup_s: float = 60.0
    margin_s: float = 60.0
    slack: float = 1.2
    poll_s: float | None = None
    heartbeat_s: float = 30.0
    setup: tuple[str, ...] = ()
    stage: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def overhead_s(self) -> float:
        """Seconds of a job in which no member runs."""
        return self.startup_s + self.margin_s


@dataclass(frozen=True)
class Planned:
    """Packs to submit now, and members that wait, with the reason."""

    packs: tuple[Pack, ...]
    waiting: Mapping[str, str]


def plan(
    members: Sequence[Member],
    site: Site,
    settings: Settings,
    jobs: Mapping[str, int] | None = None,
    waited_s: float = math.inf,
    full: Collection[str] = (),
) -> Planned:
    """Place every member in a pack, or say why it waits.

    `jobs` counts the jobs that each queue has of ours; `waited_s` is how long the members have
    waited for a fuller pack; `full` are queues that take no job now, whatever their limits say.
    BadSettings names the member that no queue can take.
    """
    count = defaultdict(int, jobs or {})
    shapes: dict[tuple[int, bool], list[Member]] = defaultdict(list)
    for member in members:
        shapes[max(1, member.gpus), member.exclusive].append(member)
    packs: list[Pack] = []
    waiting: dict[str, str] = {}
    for (gpus, exclusive), group in sorted(shapes.items()):
        for shape_packs, queue in _place(group, gpus, exclusive, site, settings, count, full):
            for pack in shape_packs:
                if pack.fill < settings.min_fill and waited_s < settings.wait_s:
                    reason = f"waits for a fuller pack ({pack.fill:.0%} of {pack.slots} slots)"
                elif queue.max_jobs is not None and count[queue.name] >= queue.max_jobs:
                    reason = f"waits for queue {queue.name}, which takes {queue.max_jobs} jobs"
                elif queue.name in full:
                    reason = f"waits for queue {queue.name}, which is full"
                else:
                    count[queue.name] += 1
                    packs.append(pack)
                    continue
                waiting.update({member.key: reason for member in pack.members})
    return Planned(tuple(packs), waiting)


def check(member: Member, site: Site, settings: Settings) -> None:
    """Raise BadSettings if no queue can take a member."""
    if member.gpus > max(1, site.gpus_per_node):
        raise BadSettings(
            f"{member.name} needs {member.gpus} GPUs on a node, and a node of {site.name} has "
            f"{site.gpus_per_node}"
        )
    _queue_of(member, site.candidates(settings.queues), settings)


def _place(
    members: list[Member],
    gpus: int,
    exclusive: bool,
    site: Site,
    settings: Settings,
    count: Mapping[str, int],
    full: Collection[str],
) -> Iterable[tuple[list[Pack], Queue]]:
    """Packs of members of one shape, in the first queue that suits them."""
    for member in members:
        check(member, site, settings)
    slots = 1 if exclusive else max(1, site.gpus_per_node) // gpus
    queues = site.candidates(settings.queues)
    by_queue: dict[str, list[Member]] = defaultdict(list)
    for member in members:  # not all of them may fit into the first queue
        by_queue[_queue_of(member, queues, settings).name].append(member)
    for name, group in by_queue.items():
        first = next(i for i, queue in enumerate(queues) if queue.name == name)
        usable = [q for q in queues[first:] if _takes(group, q, settings)]
        options = [(_packs(group, gpus, slots, q, site, settings), q) for q in usable]
        yield max(options, key=lambda option: _merit(option[0], option[1], count, full, settings))


def _queue_of(member: Member, queues: Sequence[Queue], settings: Settings) -> Queue:
    """The first queue that lets a member take all its time."""
    need_s = member.timeout_s + settings.overhead_s
    for queue in queues:
        if _takes([member], queue, settings):
            return queue
    limits = (
        f"{q.name} ({q.min_nodes} to {q.max_nodes} nodes, {hours(_longest(q))})" for q in queues
    )
    nodes = f" with {settings.max_nodes} nodes at most" if settings.max_nodes else ""
    raise BadSettings(
        f"{member.name} may take {hours(member.timeout_s)}, with start and end of its job "
        f"{hours(need_s)}, and no queue allows that{nodes}: {', '.join(limits) or 'there is none'}"
    )


def _longest(queue: Queue) -> int:
    """The longest walltime of the smallest job."""
    return queue.longest_s(queue.min_nodes)


def _takes(members: Iterable[Member], queue: Queue, settings: Settings) -> bool:
    """True if each of these members fits into a job of a queue, with all its time."""
    need_s = max(m.timeout_s for m in members) + settings.overhead_s
    fits = queue.min_nodes <= (settings.max_nodes or queue.min_nodes)
    return fits and minutes(need_s) <= _longest(queue)


def _merit(
    packs: list[Pack],
    queue: Queue,
    count: Mapping[str, int],
    full: Collection[str],
    settings: Settings,
) -> tuple[bool, bool]:
    """Order of queues before preference: packs that fit now, and are full."""
    takes_all = queue.max_jobs is None or count[queue.name] + len(packs) <= queue.max_jobs
    filled = all(pack.fill >= settings.min_fill for pack in packs)
    return filled, takes_all and queue.name not in full


def _packs(
    members: list[Member], gpus: int, slots: int, queue: Queue, site: Site, settings: Settings
) -> list[Pack]:
    """Members dealt to packs of a queue."""
    most_nodes = min(queue.max_nodes, settings.max_nodes or queue.max_nodes)
    length_s = min(settings.length_s, _longest(queue)) - settings.overhead_s
    length_s = max(length_s, max(m.expected_s for m in members))
    total_s = sum(m.expected_s for m in members)
    wanted = max(1, math.ceil(total_s / (most_nodes * slots * length_s)))
    ordered = sorted(members, key=lambda m: (-m.expected_s, m.key))

    def pack(part: list[Member]) -> Pack | None:
        return _pack(part, gpus, slots, most_nodes, length_s, queue, settings)

    def first_idle_share(number: int) -> float:  # hands are about equal
        tried = pack(deal(ordered, number, 0))
        return _idle_share(tried, settings) if tried else 1.0

    number = min(_around(wanted, 1), key=first_idle_share)
    while True:
        dealt = [part for n in range(number) if (part := deal(ordered, number, n))]
        packs = [pack(part) for part in dealt]
        if all(packs) or number >= len(members):
            break
        number += 1 + number // 8
    if not all(packs):
        raise BadSettings(f"no pack of queue {queue.name} takes {members[0].name}")
    return [_complete(planned, site, settings) for planned in packs if planned]


def _around(number: int, least: int) -> Sequence[int]:
    """A number, and some down to a fifth less: with these, packs take up to a quarter longer."""
    lowest = max(least, math.ceil(0.8 * number))
    return range(number, lowest - 1, -max(1, (number - lowest) // TRIALS))


def _idle_share(pack: Pack, settings: Settings) -> float:
    """Share of the slots' time in which no member is expected to run."""
    times_s = [m.expected_s for m in pack.members]
    took_s = makespan(times_s, pack.slots) + settings.startup_s
    return 1 - sum(times_s) / (pack.slots * took_s)


def deal(ordered: Sequence[Member], number: int, n: int) -> list[Member]:
    """The n-th of `number` hands, dealt there and back: 0 1 2 2 1 0 0 1 2 …"""
    period = 2 * number
    return [m for i, m in enumerate(ordered) if i % period in (n, period - 1 - n)]


def _pack(
    members: list[Member],
    gpus: int,
    slots: int,
    most_nodes: int,
    length_s: float,
    queue: Queue,
    settings: Settings,
) -> Pack | None:
    """One pack, about as long as wanted, with few idle slots; None if no number of nodes does."""
    total_s = sum(m.expected_s for m in members)
    useful = min(most_nodes, math.ceil(len(members) / slots))
    wanted = max(settings.min_nodes, math.ceil(total_s / (slots * length_s)))
    nodes = max(queue.min_nodes, min(useful, wanted))
    while not (packed := _pack_on(nodes, members, gpus, slots, queue, settings)):
        if nodes >= useful:
            return None
        nodes += max(1, nodes // 16)  # few trials, also with hundreds of nodes
        nodes = min(nodes, useful)
    fewer = (
        _pack_on(n, members, gpus, slots, queue, settings) for n in _around(nodes, queue.min_nodes)
    )
    return min([packed, *filter(None, fewer)], key=lambda pack: _idle_share(pack, settings))


def _pack_on(
    nodes: int,
    members: list[Member],
    gpus: int,
    slots: int,
    queue: Queue,
    settings: Settings,
) -> Pack | None:
    """One pack on so many nodes; None if they do not suffice."""
    walltime_s = walltime(members, nodes * slots, queue.longest_s(nodes), settings)
    if walltime_s is None:
        return None
    walltime_s = max(walltime_s, minutes(queue.min_walltime_s))
    exclusive = members[0].exclusive
    return Pack("", queue.name, nodes, slots, gpus, walltime_s, tuple(members), exclusive)


def walltime(
    members: Sequence[Member], slots: int, longest_s: float, settings: Settings
) -> int | None:
    """Seconds that a job of these members on so many slots is given, whole minutes.

    Up to the queue's `longest_s` there is room for members that take longer than expected; None if
    even what is expected does not fit.
    """
    makespan_s = makespan((m.expected_s for m in members), slots)
    beyond_s = max(m.timeout_s - m.expected_s for m in members)
    wanted_s = max(makespan_s * settings.slack, makespan_s + beyond_s) + settings.overhead_s
    least_s = max(makespan_s, max(m.timeout_s for m in members)) + settings.overhead_s
    most = int(longest_s) // MINUTE_S * MINUTE_S
    return min(minutes(wanted_s), most) if least_s <= most else None


def minutes(time_s: float) -> int:
    """Seconds, rounded up to whole minutes, in which batch systems count."""
    return MINUTE_S * math.ceil(time_s / MINUTE_S)


def makespan(times_s: Iterable[float], slots: int) -> float:
    """Seconds until all are done if each slot takes the next one when it is free, longest first."""
    ends = [0.0] * slots
    for time_s in sorted(times_s, reverse=True):
        heapq.heapreplace(ends, ends[0] + time_s)
    return max(ends)


def _complete(pack: Pack, site: Site, settings: Settings) -> Pack:
    affinity = affinity_of(site.affinity, pack.gpus_per_slot, pack.slots_per_node)
    return Pack(
        id="pack-" + secrets.token_hex(5),
        queue=pack.queue,
        nodes=pack.nodes,
        slots_per_node=pack.slots_per_node,
        gpus_per_slot=pack.gpus_per_slot,
        walltime_s=pack.walltime_s,
        members=pack.members,
        exclusive=pack.exclusive,
        margin_s=settings.margin_s,
        launcher=site.launcher,
        affinity=affinity,
        interfaces=site.interfaces,
        setup=settings.setup,
        stage=settings.stage,
        poll_s=settings.poll_s or max(SHORTEST_POLL_S, NODE_POLL_S * pack.slots_per_node),
        heartbeat_s=settings.heartbeat_s,
        options={**site.options, **settings.options},
    )


def affinity_of(each_gpu: str, gpus: int, slots: int) -> str:
    """CPUs of each slot, in Parsl's notation, from those of each GPU: a slot has its GPUs' CPUs."""
    if not each_gpu.startswith("list:"):
        return each_gpu
    cpus = each_gpu.removeprefix("list:").split(":")
    groups = (",".join(cpus[slot * gpus : (slot + 1) * gpus]) for slot in range(slots))
    return "list:" + ":".join(groups)
