"""Overflow policies that the paper does not have, in experiments of its figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvscope.api.sections import StudyData
from kvscope_paper.adaptive import Regret, beside, regrets
from kvscope_paper.comparison import Comparison, experiment_words

POLICIES = ("recompute", "swap", "activation", "adaptive")
METRIC = "resume_overhead_as_published_s"  # of the figures on overflow


@dataclass(frozen=True)
class Further:
    """One experiment of a figure under all POLICIES.

    `seconds` of METRIC by policy; the regrets of `adaptive` by net resume overhead and by makespan
    are None where that of the best policy is not known or 0.
    """

    figure: str
    experiment: str
    device: str
    seconds: dict[str, float]
    by_net: Regret | None
    by_makespan: Regret | None


def further(study: StudyData, found: Sequence[Comparison]) -> Iterator[Further]:
    """The experiments with `adaptive` beside those of published values, by figure."""
    by_net, by_makespan = (
        {regret.run.id: regret for regret in regrets(study, name)}
        for name in ("resume_overhead_net_s", "makespan_s")
    )
    runs = {single.id: (run, singles) for run, singles in beside(study) for single in singles}
    told = set()
    for comparison in found:
        if (
            comparison.point.table.metric != METRIC
            or comparison.run is None
            or comparison.run.id not in runs
        ):
            continue
        run, singles = runs[comparison.run.id]
        if run.id in told:
            continue
        told.add(run.id)
        yield Further(
            comparison.point.table.figure,
            experiment_words(comparison.point),
            comparison.device,
            {r.settings["overflow"]["name"]: r.number(METRIC).value for r in (*singles, run)},
            by_net.get(run.id),
            by_makespan.get(run.id),
        )
