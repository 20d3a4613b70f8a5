"""Each published value beside that of the experiment of each device that stands for it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.api.files import files
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.wording import traits
from kvscope_paper.agreement import KINDS, Kind, agrees, kind_of, rule
from kvscope_paper.pass_values import pass_value, unit_of
from kvscope_paper.published.cold_start import from_idle_s
from kvscope_paper.published.figures import PASS, Point, points

COMPARISON_FILE = "comparison.csv"
MODELED = "modeled"
ABSTRACT = "abstract"  # with which the numbers of the extended abstract's figures begin
AGREES, DIFFERS, NOT_RUN = "agrees", "differs", "not run"


@dataclass(frozen=True)
class Comparison:
    """One published value and ours on one device, NaN where its experiment has no such value.

    `ci_low` to `ci_high` is the 95 % interval of ours: of repeats, or of the cost model's numbers.
    `as_timed` is ours as the paper's clock would have read it; else the same as `value`. A
    published time is expected from `expected_low` to `expected_high` (kvscope_paper.predictive).
    """

    point: Point
    device: str
    run: ReportedRun | None
    value: float
    ci_low: float
    ci_high: float
    as_timed: float
    unit: str
    expected_low: float = math.nan
    expected_high: float = math.nan

    @property
    def ratio(self) -> float:
        """Ours, as the paper timed it, over the published value; 1 if both are 0."""
        if self.as_timed == self.point.value:
            return 1.0
        return self.as_timed / self.point.value if self.point.value else math.inf

    @property
    def modeled(self) -> bool:
        """True if our value is of a modeled device."""
        return self.device.startswith(MODELED)

    @property
    def kind(self) -> Kind:
        """The kind of value, which decides how it is judged and what that shows."""
        return kind_of(self.point, self.unit, self.modeled)

    @property
    def rule(self) -> str:
        """The rule of the verdict, in words."""
        return rule(self.point, self.unit)

    @property
    def verdict(self) -> str:
        """Verdict on the agreement of the two values."""
        if math.isnan(self.as_timed):
            return NOT_RUN
        return AGREES if agrees(self.point, self.unit, self.as_timed) else DIFFERS

    @property
    def row(self) -> dict[str, Any]:
        """Row of comparison.csv."""
        table = self.point.table
        return {
            "figure": table.figure,
            "title": table.title,
            "device": self.device,
            "series": series_words(self.point),
            "x_key": table.x,
            "x": self.point.x,
            "metric": table.metric,
            "unit": self.unit,
            "kind": self.kind.name,
            "published": self.point.value,
            "provenance": table.provenance,
            "in_paper": self.point.in_paper,
            "value": self.value,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "as_the_paper_timed": self.as_timed,
            "expected_low": self.expected_low,
            "expected_high": self.expected_high,
            "ratio": self.ratio,
            "rule": self.rule,
            "verdict": self.verdict,
            "time_source": self.run.time_source if self.run else None,
            "experiment_id": self.run.id if self.run else None,
        }


def series_words(point: Point) -> str:
    """Settings that the experiments of a series share, in words."""
    return _words({key: value for key, value in point.settings.items() if key != point.table.x})


def experiment_words(point: Point) -> str:
    """Experiment of a value, in words, without its overflow policy."""
    settings = point.settings.items()
    return _words({k: v for k, v in settings if not k.startswith(("overflow.", "engine."))})


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        str(value) if key.endswith((".name", ".path")) else traits.setting_words(key, value)
        for key, value in settings.items()
    )


def compare(study: StudyData) -> list[Comparison]:
    """Every published value that experiments of the study stand for: by figure, then by device."""
    devices: dict[str, list[tuple[ReportedRun, Mapping[str, Any]]]] = {}
    for run in study.complete:
        settings = dict(traits.flat(run.settings))
        devices.setdefault(device_words(settings), []).append((run, settings))
    compared = (
        _compared(point, *runs_of_device)
        for point in points()
        for runs_of_device in devices.items()
    )
    return [comparison for comparison in compared if comparison is not None]


def device_words(settings: Mapping[str, Any]) -> str:
    """The device in words, with its hardware if it is modeled."""
    name, hardware = str(settings.get("device.name")), settings.get("device.hardware")
    return f"{name} {hardware}" if hardware else name


def _compared(
    point: Point, device: str, runs: Sequence[tuple[ReportedRun, Mapping[str, Any]]]
) -> Comparison | None:
    fitting = [run for run, settings in runs if point.fits(settings)]
    if len(fitting) != 1:
        return None
    (run,) = fitting
    metric = point.table.metric
    step = point.x if point.table.x == PASS else point.table.at_pass
    if step is not None:
        value = pass_value(run, metric, step)
        return Comparison(point, device, run, value, math.nan, math.nan, value, unit_of(metric))
    number = run.number(metric)
    assert run.metrics is not None
    unit = str(run.metrics.at[metric, "unit"])
    timed = _from_idle(run, number.value) if point.table.from_idle else number.value
    return Comparison(point, device, run, number.value, number.low, number.high, timed, unit)


def _from_idle(run: ReportedRun, tokens_per_s: float) -> float:
    """A throughput as it is when its pass is timed from an idle GPU."""
    requests = run.records.requests
    requests = requests[requests["repeat"] == 0]
    tokens = float((requests["prompt_tokens"] + requests["output_tokens"]).sum())
    seconds = tokens / tokens_per_s
    return tokens / from_idle_s(seconds, tokens, len(requests))


def distinct(found: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons, once for each device and value where two tables show the same value."""
    first: dict[tuple[Any, ...], Comparison] = {}
    for comparison in found:
        first.setdefault((comparison.device, *comparison.point.identity), comparison)
    return list(first.values())


@dataclass(frozen=True)
class Agreement:
    """Agreement of distinct values of a kind on a device; `shown`: those in the paper's figures.

    Values of the extended abstract's figures count as shown in none of the paper's.
    """

    device: str
    kind: Kind
    values: int
    agree: int
    shown: int
    shown_agree: int


def by_kind(found: Iterable[Comparison]) -> list[Agreement]:
    """Agreement of each device, by kind in the order of KINDS, for the compared values.

    What experiments are given (`Table.given`) is not counted.
    """
    groups: dict[tuple[str, Kind], list[Comparison]] = {}
    for comparison in distinct(found):
        if comparison.verdict != NOT_RUN and not comparison.point.table.given:
            groups.setdefault((comparison.device, comparison.kind), []).append(comparison)
    ordered = sorted(groups.items(), key=lambda group: KINDS.index(group[0][1]))
    return [_agreement(device, kind, group) for (device, kind), group in ordered]


def _agreement(device: str, kind: Kind, group: Sequence[Comparison]) -> Agreement:
    shown = [comparison for comparison in group if in_figures(comparison)]
    agree, shown_agree = (
        sum(comparison.verdict == AGREES for comparison in part) for part in (group, shown)
    )
    return Agreement(device, kind, len(group), agree, len(shown), shown_agree)


def in_figures(one: Comparison) -> bool:
    """True if a figure of the paper itself shows the value."""
    return one.point.in_paper and not one.point.table.figure.startswith(ABSTRACT)


def by_figure(found: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """One summary for each published table and device: values that agree, and errors of ours."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in found:
        table = comparison.point.table
        groups.setdefault((table.figure, table.title, comparison.device), []).append(comparison)
    for (figure, title, device), group in groups.items():
        table = group[0].point.table
        off = pd.Series([abs(comparison.ratio - 1) for comparison in group])
        yield {
            "figure": figure,
            "title": title,
            "device": device,
            "values": len(group),
            "agree": sum(comparison.verdict == AGREES for comparison in group),
            "rule": group[0].rule,
            "median_error": float(off.median()),
            "largest_error": float(off.max()),
            "provenance": table.provenance,
            "note": table.note,
            "beside": sum(not comparison.point.in_paper for comparison in group),
            "points": group,
        }


def write_comparison(
    found: Sequence[Comparison], directory: Path, name: str = COMPARISON_FILE
) -> None:
    """Write comparison.csv, or a part of it under another name."""
    frame = pd.DataFrame([comparison.row for comparison in found])
    with files.atomic_path(directory / name) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")
