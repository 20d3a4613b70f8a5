"""Two studies, result sets or runs compared: a verdict on each metric of each experiment.

Two runs of one campaign are compared over its rounds, others as independent means.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.base.layout import MANIFEST
from kvscope.base.statistics import Interval
from kvscope.base.time_sources import rehearsal_refused
from kvscope.metrics.estimates import INDEPENDENT, Estimates
from kvscope.metrics.measure import Measure
from kvscope.metrics.study import column_measures
from kvscope.report.comparisons import Comparison, comparison
from kvscope.report.data import ReportedRun, StudyData, of_interest
from kvscope.report.load import load
from kvscope.report.words import (
    difference_text,
    estimate_text,
    signed_percent,
)

NOT_VALID, NOT_COMPARED, SAME = "not valid", "not compared", "no difference"


@dataclass(frozen=True)
class Difference:
    """One metric of one experiment, in the first results and in the second beside them."""

    experiment: str
    metric: Measure
    first: Interval
    second: Interval
    believed: bool
    compared: Comparison

    @property
    def verdict(self) -> str:
        """'better' or 'worse', 'higher' or 'lower', or why there is neither."""
        if not self.believed:
            return NOT_VALID
        if not self.compared.known:
            return NOT_COMPARED
        if not self.compared.sign:
            return SAME
        words = ("higher", "lower") if not self.metric.better else ("better", "worse")
        return words[0] if self.compared.sign * (self.metric.better or 1) > 0 else words[1]

    @property
    def change(self) -> str:
        """'+12 % (+9 % to +15 %)' of the first value; '+5 a repeat' without a ratio."""
        ratio, apart = self.compared.ratio, self.compared.apart
        if ratio is None:
            if self.first.value > 0 and self.second.value > 0:
                return signed_percent(self.second.value / self.first.value)
            if math.isnan(apart.value):
                return ""
            return f"{difference_text(apart, self.metric)} {self.metric.display_unit}"
        low, high = signed_percent(ratio.low), signed_percent(ratio.high)
        interval = f" ({low} to {high})" if ratio.low < ratio.high else ""
        return f"{signed_percent(ratio.value)}{interval}"


def read(what: str, results: Path) -> StudyData:
    """A study by its name or its directory in any results, or a run by its directory.

    BadInput if a run of it was rehearsed: its numbers are compared with nothing.
    """
    path = Path(what)
    if (path / MANIFEST).is_file():
        study = load([path.resolve().name], path.resolve().parent.parent)
    else:
        study = load([what], results)
    if study.rehearsed:
        run = study.rehearsed[0].directory
        raise rehearsal_refused(f"{run} of {what}" if study.planned else what, "compare")
    return study


def differences(first: StudyData, second: StudyData) -> list[Difference]:
    """The main metrics that both have, of every experiment that both have.

    The same experiment has the same id, else the same label; two single runs are compared whatever
    they are. BadInput if there is nothing to compare.
    """
    rows = [
        row
        for run, other in _matched(first.complete, second.complete)
        for row in _differences(run, other)
    ]
    if not rows:
        raise BadInput(
            f"{first.name} and {second.name} have no experiment with results in common, by id or "
            "by label"
        )
    return rows


def _differences(run: ReportedRun, other: ReportedRun) -> Iterator[Difference]:
    sides = {"first": run.as_measured, "second": other.as_measured}
    estimates = Estimates({side: measured for side, measured in sides.items() if measured})
    for shown in column_measures():
        name = shown.name
        if of_interest(shown, (run,)) and of_interest(shown, (other,)):
            yield Difference(
                run.label,
                shown,
                run.number(name),
                other.number(name),
                run.believed(name) and other.believed(name),
                comparison(estimates, name, "second", "first"),
            )


def _matched(
    first: Sequence[ReportedRun], second: Sequence[ReportedRun]
) -> Iterator[tuple[ReportedRun, ReportedRun]]:
    if len(first) == len(second) == 1:
        yield first[0], second[0]
        return
    by_id, by_label = ({getattr(run, key): run for run in second} for key in ("id", "label"))
    same = [(run, by_id[run.id]) for run in first if run.id in by_id]
    yield from same or ((run, by_label[run.label]) for run in first if run.label in by_label)


def lines(found: Sequence[Difference]) -> Iterator[str]:
    """A table an experiment, and how many verdicts of each kind there are."""
    rows = [_cells(row) for row in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    experiment = None
    for row, (name, first, second, change, verdict) in zip(found, rows, strict=True):
        if row.experiment != experiment:
            experiment = row.experiment
            yield experiment or "one experiment"
        numbers = f"{first:>{widths[1]}} -> {second:>{widths[2]}}  {change:>{widths[3]}}"
        yield f"  {name:<{widths[0]}}  {numbers}  {verdict}"
    if any(row.compared.ratio and row.compared.ratio.how == INDEPENDENT for row in found):
        yield (
            "not measured in the same rounds: the intervals do not have in them what the machines "
            "did between the two"
        )
    counts = Counter(row.verdict for row in found)
    yield ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def _cells(one: Difference) -> tuple[str, str, str, str, str]:
    first, second = (" ".join(estimate_text(n, one.metric)) for n in (one.first, one.second))
    return (
        f"{one.metric.heading} ({one.metric.display_unit})",
        first,
        second,
        one.change,
        one.verdict,
    )


def as_json(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """The differences as objects, in the units of the `metrics` table; null for what is missing."""

    def number(interval: Interval) -> dict[str, float | None]:
        values = {"value": interval.value, "ci_low": interval.low, "ci_high": interval.high}
        return {key: value if math.isfinite(value) else None for key, value in values.items()}

    def ratio(interval: Interval) -> dict[str, Any]:
        return {**number(interval), "how": interval.how, "rounds": interval.count}

    return [
        {
            "experiment": row.experiment,
            "metric": row.metric.name,
            "first": number(row.first),
            "second": number(row.second),
            "ratio": row.compared.ratio and ratio(row.compared.ratio),
            "verdict": row.verdict,
        }
        for row in found
    ]
