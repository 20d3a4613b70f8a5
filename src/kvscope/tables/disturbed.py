"""When a repeat is disturbed, by the load that was recorded around it (`disturbance` in run.json).

`kvscope.run.disturbance` has how the load is read, and what neighbours and strangers are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Load = Mapping[str, Any]
SHARES = ("steal_share", "other_cpu_share", "neighbour_cpu_share", "waiting_share")
LOAD = ("cores", *SHARES, "other_run", "work_s")
"""The keys of an entry that the verdict follows from."""

# A repeat is disturbed if it exceeds any of these shares. An idle machine stays below them (system
# services take about 1 %); load above them may lengthen a repeat by a good part of the 5 % to which
# kvscope's studies measure throughput.
# Share of the machine's CPU time that the hypervisor gave to other machines. It lengthens a repeat
# by at most this share; idle virtual machines lose 1 to 4 %.
MAXIMUM_STEAL = 0.05
# Share of the machine's CPU time used by other processes. Even on other cores they compete with the
# run for caches, memory bandwidth and clock rate.
MAXIMUM_OTHERS = 0.10
# Share of the repeat in which the main thread, which every pass waits for, was ready without a CPU.
MAXIMUM_WAITING = 0.02
# Relative increase of the time of a fixed piece of work around the repeat, over its lowest time in
# the run. Neighbours of a virtual machine compete for caches and memory, which /proc does not show.
# The reads of the fixed work slow down several times more than an engine's passes, which also
# compute.
MAXIMUM_SLOWDOWN = 0.60
# Share of the machine's CPU time from which on neighbours are at work: an idle pack needs less.
NEIGHBOURS_AT_WORK = 0.01


class DisturbanceVerdict(NamedTuple):
    """Whether a repeat is disturbed and why, and what its pack's neighbours did in the same way."""

    disturbed: bool
    why: str
    shared: str


def judge_repeats(loads: Sequence[Load]) -> list[DisturbanceVerdict]:
    """The verdicts on all repeats of a run. The fixed work is compared with their fastest."""
    fastest_s = min((each["work_s"] for each in loads if each["work_s"] is not None), default=None)
    return [
        DisturbanceVerdict(bool(why), why, ", ".join(_shared(each, fastest_s)))
        for each in loads
        for why in [", ".join(_reasons(each, fastest_s))]
    ]


def _reasons(found: Load, fastest_s: float | None) -> Iterator[str]:
    """The reasons why a repeat is disturbed, from `compare_samples` and the run's fastest work."""
    others, steal, waiting = (
        found[key] or 0.0 for key in ("other_cpu_share", "steal_share", "waiting_share")
    )
    if others > MAXIMUM_OTHERS:
        yield f"other processes used {_of_cores(others, found)}"
    if found["other_run"]:
        yield "another run was measured at the same time"
    if steal > MAXIMUM_STEAL:
        yield f"the hypervisor took {steal:.0%} of the CPU time"
    if not _is_neighbours(found):
        if waiting > MAXIMUM_WAITING:
            yield f"the run waited for a CPU for {waiting:.0%} of its time"
        if (slowdown := _slowdown(found, fastest_s)) > MAXIMUM_SLOWDOWN:
            yield f"the same work took {slowdown:.0%} longer than around another repeat"


def _shared(found: Load, fastest_s: float | None) -> Iterator[str]:
    """Sentences on neighbours of the pack whose work would have been a disturbance by strangers."""
    neighbours, waiting = (found[key] or 0.0 for key in ("neighbour_cpu_share", "waiting_share"))
    if neighbours > MAXIMUM_OTHERS:
        yield f"its pack's other members used {_of_cores(neighbours, found)}"
    if _is_neighbours(found):
        if waiting > MAXIMUM_WAITING:
            yield f"beside them the run waited for a CPU for {waiting:.0%} of its time"
        if (slowdown := _slowdown(found, fastest_s)) > MAXIMUM_SLOWDOWN:
            yield f"beside them the same work took {slowdown:.0%} longer than around another repeat"


def _is_neighbours(found: Load) -> bool:
    """Whether waiting and slow work count as the neighbours': they used more CPU than strangers.

    The system does not tell who had the CPU that the run waited for, or the caches.
    """
    neighbours, others = (found[key] or 0.0 for key in ("neighbour_cpu_share", "other_cpu_share"))
    return neighbours > max(others, NEIGHBOURS_AT_WORK)


def _slowdown(found: Load, fastest_s: float | None) -> float:
    return found["work_s"] / fastest_s - 1 if fastest_s else 0.0


def _of_cores(share: float, found: Load) -> str:
    return f"{share * found['cores']:.1f} of {found['cores']} CPUs"
