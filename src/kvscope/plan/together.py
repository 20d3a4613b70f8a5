"""Experiments that are measured together: how many fit in memory.

Those that comparisons connect (`plan.pairs`) are measured by one process, a campaign, in rounds:

- `rounds`: every experiment has an engine of its own, and each round serves all of them;
- `groups`: the engines do not fit in memory together; all groups have the reference in them, which
  connects their rounds;
- `sittings`: not even two engines fit, or they need the same GPU; in each round one engine after
  the other is started, serves once, and ends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvscope.base.quantities import plural
from kvscope.plan import pairs
from kvscope.plan.resources import PARKED_MIB, ZYGOTE_MIB, machine_gib, required_mib

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment

ROUNDS, GROUPS, SITTINGS = "rounds", "groups", "sittings"
# Share of the machine's memory that parked engines may take: the rest is for its other programs.
MEMORY_SHARE = 0.8
GIB_MIB = 1024


@dataclass(frozen=True)
class Design:
    """The way in which experiments are measured together.

    Attributes
    ----------
    name
        ROUNDS, GROUPS or SITTINGS
    groups
        the ids that stand side by side, group by group; with SITTINGS one group, whose engines
        stand one at a time
    references
        the ids that are in several groups
    memory_mib
        what the engines of the largest group are expected to take, and the process that forks them
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    references: frozenset[str]
    memory_mib: int

    @property
    def words(self) -> str:
        """'9 engines side by side in rounds, 4.5 GiB'."""
        count = plural(len({i for group in self.groups for i in group}), "engine")
        gib = f"{self.memory_mib / GIB_MIB:.1f} GiB"
        if self.name == SITTINGS:
            return f"{count}, one at a time in every round (sittings), {gib}"
        if self.name == GROUPS:
            most = max(map(len, self.groups))
            shared = f", {len(self.references)} of them in several" if self.references else ""
            return f"{count} in {len(self.groups)} groups of at most {most}{shared}, {gib}"
        return f"{count} side by side in rounds, {gib}"


def design(experiments: Sequence["Experiment"], memory_mib: float | None = None) -> Design:
    """The design for these experiments with so much memory (default: this machine's).

    Experiments that comparisons connect stand side by side if they fit in memory.
    """
    room = machine_gib() * GIB_MIB * MEMORY_SHARE if memory_mib is None else memory_mib
    needs = {e.id: PARKED_MIB + required_mib(e) for e in experiments}
    fit = ZYGOTE_MIB + sum(needs.values()) <= room and not _on_gpu(experiments)
    if fit or len(needs) == 1:
        return Design(ROUNDS, (tuple(needs),), frozenset(), ZYGOTE_MIB + sum(needs.values()))
    groups = None if _on_gpu(experiments) else _groups(experiments, needs, room - ZYGOTE_MIB)
    if groups is None:
        most = ZYGOTE_MIB + max(needs.values())
        return Design(SITTINGS, (tuple(needs),), frozenset(), most)
    largest = max(sum(needs[i] for i in group) for group in groups)
    counts = Counter(i for group in groups for i in group)
    shared = frozenset(i for i, count in counts.items() if count > 1)
    return Design(GROUPS, groups, shared, ZYGOTE_MIB + largest)


def _on_gpu(experiments: Iterable["Experiment"]) -> bool:
    """Whether any needs a GPU, whose memory vLLM takes as a whole."""
    return any(e.device.gpus for e in experiments)


def _groups(
    experiments: Sequence["Experiment"], needs: Mapping[str, int], room: float
) -> tuple[tuple[str, ...], ...] | None:
    """Groups that fit into `room` MiB, filled in order; None if some must stand alone.

    Connected experiments that are too large for one group are in several, with one experiment in
    all.
    """
    by_id = {e.id: e for e in experiments}
    whole: list[tuple[str, ...]] = []
    groups: list[tuple[str, ...]] = []
    for ids in pairs.connected(experiments):
        if sum(needs[i] for i in ids) <= room:
            whole.append(ids)
            continue
        if len(ids) == 1:
            return None
        reference = _reference([by_id[i] for i in ids], needs)
        singles = [(i,) for i in ids if i != reference]
        split = _fill(singles, needs, room - needs[reference])
        if split is None:
            return None
        groups += [(reference, *group) for group in split]
    return (*(_fill(whole, needs, room) or ()), *groups)


def _fill(
    units: Iterable[tuple[str, ...]], needs: Mapping[str, int], room: float
) -> list[tuple[str, ...]] | None:
    """Whole units in order, in groups of ids that fit into `room` MiB; None if one does not."""
    groups: list[list[str]] = []
    room_left = 0.0
    for unit in units:
        need = sum(needs[i] for i in unit)
        if need > room:
            return None
        if need > room_left:
            groups.append([])
            room_left = room
        groups[-1] += unit
        room_left -= need
    return [tuple(group) for group in groups]


def _reference(experiments: Sequence["Experiment"], needs: Mapping[str, int]) -> str:
    """The experiment with the most comparisons; of several, that which needs least memory."""
    counts: Counter[str] = Counter()
    for ids in pairs.groups_by_section(experiments):
        counts.update(dict.fromkeys(ids, len(ids) - 1))
    return min(counts, key=lambda i: (-counts[i], needs[i]))
