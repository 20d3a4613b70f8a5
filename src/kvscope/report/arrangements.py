"""Where experiments stand in a chart: one beside the other, or over a varied key's values."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

from kvscope.report.data import Run, StudyData
from kvscope.report.words import key_title, setting_text, value_text

# More series than this cannot be told apart by colour and line style.
MOST_SERIES = 24
BY_EXPERIMENT = ""


@dataclass(frozen=True)
class Series:
    """Experiments of one colour; a point is (place of its tick, number of the run)."""

    name: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Arrangement:
    """A category axis and the series over it; `ordered` if the ticks are numbers."""

    key: str
    title: str
    ticks: tuple[str, ...]
    ordered: bool
    series: tuple[Series, ...]


def arrangements(study: StudyData) -> list[Arrangement]:
    """All that fit the study, the best to start with first; runs are numbered as in the study."""
    by_key = [a for key in study.keys if (a := _by_key(study, key)) is not None]
    by_key.sort(key=lambda a: (len(a.ticks), a.ordered), reverse=True)
    return [*by_key, _by_experiment(study)]


def _complete(study: StudyData) -> Iterator[tuple[int, Run]]:
    return ((number, run) for number, run in enumerate(study.runs) if run.complete)


def _by_experiment(study: StudyData) -> Arrangement:
    runs = list(_complete(study))
    points = tuple((place, number) for place, (number, _) in enumerate(runs))
    ticks = tuple(run.label for _, run in runs)
    return Arrangement(BY_EXPERIMENT, "experiment", ticks, False, (Series("", points),))


def _by_key(study: StudyData, key: str) -> Arrangement | None:
    """Over a key's values, a series for each setting of the others; None if that is no chart."""
    runs = list(_complete(study))
    values = _in_order([run.varied.get(key) for _, run in runs])
    series: dict[str, dict[int, int]] = {}
    for number, run in runs:
        points = series.setdefault(_others(run, key), {})
        place = values.index(run.varied.get(key))
        if place in points:
            return None  # two experiments in one place: other things differ, too
        points[place] = number
    if len(values) < 2 or len(series) > MOST_SERIES:
        return None
    return Arrangement(
        key,
        key_title(key),
        tuple(map(value_text, values)),
        all(_is_number(value) for value in values),
        tuple(Series(name, tuple(sorted(points.items()))) for name, points in series.items()),
    )


def _in_order(values: list[Any]) -> list[Any]:
    """Different values: numbers by size, anything else as it comes."""
    different = list(dict.fromkeys(values))
    return sorted(different) if all(map(_is_number, different)) else different


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _others(run: Run, key: str) -> str:
    """The run's other settings, in words; an option's name says enough by itself."""
    rest = [(k, v) for k, v in run.varied.items() if k != key and v is not None]
    return ", ".join(
        value if isinstance(value, str) else setting_text(k, value) for k, value in rest
    )
