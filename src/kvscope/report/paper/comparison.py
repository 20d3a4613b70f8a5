"""Each published value beside the value of the experiment that stands for it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.files import atomic_path
from kvscope.plan.published.cold_start import from_idle_s
from kvscope.plan.published.figures import Point, points
from kvscope.report.data import Run, StudyData
from kvscope.report.settings import flat
from kvscope.report.words import setting_words

COMPARISON_FILE = "comparison.csv"
# Of a value, and of a count, which follows from the scheduler alone.
TOLERANCE, EXACT = 0.05, 0.0
COUNTS = ("passes", "preemptions", "tokens")
AGREES, DIFFERS, NOT_RUN = "agrees", "differs", "not run"


@dataclass(frozen=True)
class Comparison:
    """One published value and ours, NaN where no complete experiment stands for it.

    `as_timed` is ours as the paper's clock would have read it; else the same as `value`.
    """

    point: Point
    run: Run | None
    value: float
    ci_low: float
    ci_high: float
    as_timed: float
    unit: str

    @property
    def ratio(self) -> float:
        """Ours, as the paper timed it, over the published value; 1 if both are 0."""
        if self.as_timed == self.point.value:
            return 1.0
        return self.as_timed / self.point.value if self.point.value else math.inf

    @property
    def tolerance(self) -> float:
        """The difference, as a share of the published value, that is no disagreement."""
        return EXACT if self.unit in COUNTS else TOLERANCE

    @property
    def verdict(self) -> str:
        """Whether the two agree."""
        if math.isnan(self.as_timed):
            return NOT_RUN
        return AGREES if abs(self.ratio - 1) <= self.tolerance else DIFFERS

    @property
    def row(self) -> dict[str, Any]:
        """As comparison.csv has it."""
        table = self.point.table
        return {
            "figure": table.figure,
            "title": table.title,
            "series": series_words(self.point),
            "x_key": table.x,
            "x": self.point.x,
            "metric": table.metric,
            "unit": self.unit,
            "published": self.point.value,
            "provenance": table.provenance,
            "value": self.value,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "as_the_paper_timed": self.as_timed,
            "ratio": self.ratio,
            "tolerance": self.tolerance,
            "verdict": self.verdict,
            "time_source": self.run.time_source if self.run else None,
            "experiment_id": self.run.id if self.run else None,
        }


def series_words(point: Point) -> str:
    """What the experiments of a series share, in words."""
    own = {key: value for key, value in point.settings.items() if key != point.table.x}
    return ", ".join(
        str(value) if key.endswith(".name") else setting_words(key, value)
        for key, value in own.items()
    )


def compare(study: StudyData) -> list[Comparison]:
    """Every published value that an experiment of the study stands for, in the figures' order."""
    settings = [(run, dict(flat(run.settings))) for run in study.complete]
    found = (_compared(point, settings) for point in points())
    return [one for one in found if one is not None]


def _compared(point: Point, runs: Sequence[tuple[Run, Mapping[str, Any]]]) -> Comparison | None:
    fitting = [run for run, settings in runs if point.fits(settings)]
    if len(fitting) != 1:
        return None
    (run,) = fitting
    number = run.number(point.table.metric)
    assert run.metrics is not None
    unit = str(run.metrics.at[point.table.metric, "unit"])
    timed = _from_idle(run, number.value) if point.table.from_idle else number.value
    return Comparison(point, run, number.value, number.low, number.high, timed, unit)


def _from_idle(run: Run, tokens_per_s: float) -> float:
    """A throughput as it is when its pass is timed from an idle GPU."""
    requests = run.records.requests
    requests = requests[requests["repeat"] == 0]
    tokens = float((requests["prompt_tokens"] + requests["output_tokens"]).sum())
    seconds = tokens / tokens_per_s
    return tokens / from_idle_s(seconds, tokens, len(requests))


def by_figure(found: list[Comparison]) -> Iterator[dict[str, Any]]:
    """One summary for each published table: how many values agree, and how far ours are off."""
    tables = dict.fromkeys(one.point.table.title + one.point.table.figure for one in found)
    for key in tables:
        own = [one for one in found if one.point.table.title + one.point.table.figure == key]
        table = own[0].point.table
        off = pd.Series([abs(one.ratio - 1) for one in own])
        yield {
            "figure": table.figure,
            "title": table.title,
            "values": len(own),
            "agree": sum(one.verdict == AGREES for one in own),
            "median_error": float(off.median()),
            "largest_error": float(off.max()),
            "provenance": table.provenance,
            "note": table.note,
            "points": own,
        }


def write_comparison(found: list[Comparison], directory: Path) -> None:
    """Write comparison.csv."""
    frame = pd.DataFrame([one.row for one in found])
    with atomic_path(directory / COMPARISON_FILE) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")
