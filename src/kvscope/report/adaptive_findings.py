"""How far `adaptive` is from the best single overflow policy, of otherwise equal experiments."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvscope.report.data import Run, StudyData
from kvscope.report.words import (
    MAKESPAN,
    OVERHEAD_NET,
    PREEMPTIONS,
    join_words,
    plural,
)

ADAPTIVE = "adaptive"
# Settings of overflow policies that single policies and `adaptive` must share, if they have them.
SHARED = ("overflow.copies", "overflow.host_memory")
MUCH = 0.03  # of the best policy's cost, by which adaptive should never lose


@dataclass(frozen=True)
class Regret:
    """What `adaptive` costs beyond the best single policy, as a share of that one's cost."""

    run: Run
    best: Run
    share: float


def regrets(study: StudyData, metric: str) -> list[Regret]:
    """Of each experiment with `adaptive` that preempts and has single policies beside it."""
    found = []
    for run, singles in beside(study):
        known = [one for one in singles if math.isfinite(one.number(metric).value)]
        own = run.number(metric).value
        if len(known) < 2 or not math.isfinite(own):
            continue
        best = min(known, key=lambda one: one.number(metric).value)
        least = best.number(metric).value
        if least > 0:
            found.append(Regret(run, best, own / least - 1))
    return found


def adaptive_regret(study: StudyData) -> list[str]:
    """One sentence: the most that `adaptive` loses to the best single policy, by two measures."""
    by_net = regrets(study, OVERHEAD_NET.metric)
    by_makespan = regrets(study, MAKESPAN.metric)
    if not by_net or not by_makespan:
        return []
    parts = []
    for name, found in (("net resume overhead", by_net), ("makespan", by_makespan)):
        most = max(0.0, *(one.share for one in found))
        much = sum(one.share > MUCH for one in found)
        where = f" (more than {100 * MUCH:.0f} % in {much})" if much else ""
        parts.append(f"{name} at most {100 * most:.2g} % above it{where}")
    counts = Counter(one.best.settings["overflow"]["name"] for one in by_net).most_common()
    best = join_words([f"{name} in {count}" for name, count in counts])
    return [
        f"Adaptive beside the best single policy, {plural(len(by_net), 'experiment')}: "
        f"{join_words(parts)}. By net resume overhead the best is {best}."
    ]


def beside(study: StudyData) -> Iterator[tuple[Run, list[Run]]]:
    """The experiments with `adaptive` that preempt, each with those that differ in policy only."""
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in study.complete:
        if run.number(PREEMPTIONS.metric).value > 0:
            rest = ((k, str(v)) for k, v in run.flat.items() if not k.startswith("overflow"))
            groups[tuple(sorted(rest))].append(run)
    for runs in groups.values():
        for run in runs:
            if run.flat.get("overflow") == ADAPTIVE:
                others = [one for one in runs if one.flat.get("overflow") != ADAPTIVE]
                yield run, [one for one in others if _shares(one, run)]


def _shares(one: Run, run: Run) -> bool:
    return all(one.flat.get(key) in (None, run.flat.get(key)) for key in SHARED)
