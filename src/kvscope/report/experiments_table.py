"""The page's table of experiments: its columns, which of them are folded, and its cells."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.analyse.metric import Measure
from kvscope.report.data import Run, StudyData
from kvscope.report.number import Number
from kvscope.report.settings import following_limits, is_number
from kvscope.report.tables import main_columns
from kvscope.report.words import (
    estimate_text,
    key_title,
    value_words,
)

HARDLY = 0.02  # of the largest value: within it, a metric hardly varies
MOST = 0.8  # of the experiments: if more have one value, a key hardly varies


MOST_COMPARED = 24  # experiments, of which each is compared with each

Differences = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True)
class Column:
    """A column: a key or a metric. One that is `folded` is shown if it is chosen."""

    heading: str
    unit: str = ""
    better: int = 0
    folded: bool = False
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """A value as text, and as what it is sorted and compared by; `best` of its column."""

    text: str
    half: str = ""
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ExperimentsTable:
    """Columns, the cells of each experiment by its id, and metrics that hardly vary, in words.

    `differences` are those of valid experiments by column, experiment and base, in percent of the
    base: lower end, value and upper end, None where there is none. Empty of many experiments.
    """

    columns: tuple[Column, ...]
    cells: dict[str, list[Cell]]
    hardly_vary: tuple[str, ...]
    differences: dict[str, Differences]


def experiments_table(study: StudyData) -> ExperimentsTable:
    """The table of a study: the keys that vary, then the main metrics."""
    keys = list(dict.fromkeys(key for traits in study.traits.values() for key in traits))
    limits = following_limits(list(study.traits.values()))
    metrics = main_columns(study)
    same = {shown for shown in metrics if _hardly_varies(study, shown)}
    columns = [
        _of_key(study, key, key in limits or _adds_little(study, key, keys[:place]))
        for place, key in enumerate(keys)
    ]
    columns += [
        Column(
            shown.heading, shown.display_unit, shown.better, folded=not shown.first or shown in same
        )
        for shown in metrics
    ]
    best = {shown: _best(study, shown) for shown in metrics if shown not in same}
    return ExperimentsTable(
        tuple(columns),
        {
            run.id: [_setting(study.traits[run.id].get(key)) for key in keys]
            + [_metric(run, shown, best.get(shown)) for shown in metrics]
            for run in study.runs
        },
        tuple(f"{shown.heading} {_range(study, shown)}" for shown in metrics if shown in same),
        {
            str(column): _differences(study, shown)
            for column, shown in enumerate(metrics, len(keys))
            if len(study.complete) <= MOST_COMPARED
        },
    )


def _differences(study: StudyData, shown: Measure) -> Differences:
    valid = [run for run in study.complete if run.believed(shown.name)]
    return {run.id: dict(_from_bases(study, shown, run, valid)) for run in valid}


def _from_bases(
    study: StudyData, shown: Measure, run: Run, bases: Sequence[Run]
) -> Iterator[tuple[str, list[float | None]]]:
    for base in bases:
        if base is not run and (found := study.estimates.ratio(shown.name, run.id, base.id)):
            ends = (100 * (end - 1) for end in (found.low, found.value, found.high))
            yield base.id, [round(end, 2) if math.isfinite(end) else None for end in ends]


def _of_key(study: StudyData, key: str, folded: bool) -> Column:
    values = [traits.get(key) for traits in study.traits.values()]
    number = all(value is None or is_number(value) for value in values)
    return Column(key_title(key), folded=folded, number=number)


def _adds_little(study: StudyData, key: str, earlier: list[str]) -> bool:
    return _rarely_differs(study, key) or _names_the_same(study, key, earlier)


def _names_the_same(study: StudyData, key: str, earlier: list[str]) -> bool:
    """Whether the values of an earlier key distinguish the runs exactly as those of `key` do."""
    runs = list(study.traits.values())
    return any(
        len({(str(run.get(key)), str(run.get(other))) for run in runs})
        == len({str(run.get(key)) for run in runs})
        == len({str(run.get(other)) for run in runs})
        for other in earlier
    )


def _rarely_differs(study: StudyData, key: str) -> bool:
    values = Counter(value_words(study.traits[run.id].get(key)) for run in study.runs)
    return values.most_common(1)[0][1] > MOST * len(study.runs)


def _setting(value: Any) -> Cell:
    return Cell(value_words(value), value=float(value) if is_number(value) else None)


def _metric(run: Run, shown: Measure, best: float | None) -> Cell:
    number = run.number(shown.name)
    text, half = estimate_text(number, shown)
    value = None if math.isnan(number.value) else number.value
    return Cell(text, half, value, best is not None and value == best and run.valid)


def _numbers(study: StudyData, shown: Measure) -> list[Number]:
    found = (run.number(shown.name) for run in study.complete)
    return [number for number in found if not math.isnan(number.value)]


def _hardly_varies(study: StudyData, shown: Measure) -> bool:
    """Whether several experiments have the metric, all of them nearly the same value."""
    values = [number.value for number in _numbers(study, shown)]
    spread = max(values, default=0.0) - min(values, default=0.0)
    return len(values) > 1 and spread <= HARDLY * max(map(abs, values))


def _best(study: StudyData, shown: Measure) -> float | None:
    """The best value of the valid experiments; None if neither more nor less is better."""
    values = [run.number(shown.name).value for run in study.runs if run.valid]
    known = [shown.better * value for value in values if not math.isnan(value)]
    return shown.better * max(known) if shown.better and len(known) > 1 else None


def _range(study: StudyData, shown: Measure) -> str:
    """The lowest and the highest value: '0.41 to 0.42 s'."""
    numbers = sorted(_numbers(study, shown), key=lambda number: number.value)
    ends: Sequence[str] = [estimate_text(number, shown)[0] for number in (numbers[0], numbers[-1])]
    return f"{' to '.join(dict.fromkeys(ends))} {shown.display_unit}"
