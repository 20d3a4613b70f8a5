"""Distance of `adaptive` from the best single overflow policy, of otherwise equal experiments."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.wording import wording
from kvscope.api.words import quantities

ADAPTIVE = "adaptive"
# Settings of overflow policies that single policies and `adaptive` must share, if they have them.
SHARED = ("overflow.copies", "overflow.host_memory")
MUCH = 0.03  # of the best policy's cost, by which adaptive should never lose


@dataclass(frozen=True)
class Regret:
    """Regret of `adaptive`: its cost beyond the best single policy, as a share of that cost.

    `interval` is that of the share, in words, and `certain` whether all of it is above 0: '' and
    true without an interval.
    """

    run: ReportedRun
    best: ReportedRun
    share: float
    interval: str = ""
    certain: bool = True


def regrets(study: StudyData, metric: str) -> list[Regret]:
    """Regret of each experiment with `adaptive` that has single policies beside it.

    Values that are not valid are left out, and experiments in which both are 0, as the overhead of
    preemptions is where there are none. Beyond a cost of 0 the share is infinite.
    """
    results = []
    for run, singles in beside(study):
        candidates = [single for single in singles if _has(single, metric)]
        if len(candidates) < 2 or not _has(run, metric):
            continue
        best = min(candidates, key=lambda single: single.number(metric).value)
        ours, least = run.number(metric), best.number(metric)
        if ours.value > 0 or least.value > 0:
            ratio = study.estimates.ratio(metric, run.id, best.id)
            if ratio:
                interval = wording.interval_words(ratio).strip(" ()")
                results.append(Regret(run, best, ratio.value - 1, interval, ratio.sign > 0))
            else:
                share = ours.value / least.value if least.value > 0 else math.inf
                results.append(Regret(run, best, share - 1))
    return results


def _has(run: ReportedRun, metric: str) -> bool:
    return run.believed(metric) and math.isfinite(run.number(metric).value)


def adaptive_regret(study: StudyData) -> list[str]:
    """One sentence: the most that `adaptive` loses to the best single policy, by two measures."""
    by_net = regrets(study, "resume_overhead_net_s")
    by_makespan = regrets(study, "makespan_s")
    if not by_makespan:
        return []
    parts = []
    for name, of_metric in (("net resume overhead", by_net), ("makespan", by_makespan)):
        if not of_metric:
            continue
        finite = [regret for regret in of_metric if math.isfinite(regret.share)]
        if not finite:
            parts.append(f"{name} above one of 0 in {len(of_metric)}")
            continue
        most = max(finite, key=lambda regret: regret.share)
        much = [regret for regret in finite if regret.share > MUCH]
        certain = sum(regret.certain for regret in much)
        noise = f", beyond the noise in {certain}" if certain < len(much) else ""
        where = [most.interval] if most.share > 0 else []
        where += [f"more than {100 * MUCH:.0f} % in {len(much)}{noise}"] if much else []
        beyond = len(of_metric) - len(finite)
        where += [f"above one of 0 in {beyond}"] if beyond else []
        aside = f" ({'; '.join(filter(None, where))})" if any(where) else ""
        parts.append(f"{name} at most {100 * max(0.0, most.share):.2g} % above it{aside}")
    told = (
        "Adaptive beside the best single policy, "
        f"{quantities.plural(len(by_makespan), 'experiment')}: {quantities.join_words(parts)}."
    )
    if by_net:
        counts = Counter(
            regret.best.settings["overflow"]["name"] for regret in by_net
        ).most_common()
        best = quantities.join_words([f"{name} in {count}" for name, count in counts])
        told += f" By net resume overhead the best is {best}."
    return [told]


def beside(study: StudyData) -> Iterator[tuple[ReportedRun, list[ReportedRun]]]:
    """The experiments with `adaptive`, each with those that differ in policy only."""
    groups: dict[tuple[Any, ...], list[ReportedRun]] = defaultdict(list)
    for run in study.complete:
        rest = ((k, str(v)) for k, v in run.flat.items() if not k.startswith("overflow"))
        groups[tuple(sorted(rest))].append(run)
    for runs in groups.values():
        for run in runs:
            if run.flat.get("overflow") == ADAPTIVE:
                others = [other for other in runs if other.flat.get("overflow") != ADAPTIVE]
                yield run, [other for other in others if _shares(other, run)]


def _shares(other: ReportedRun, run: ReportedRun) -> bool:
    return all(other.flat.get(key) in (None, run.flat.get(key)) for key in SHARED)
