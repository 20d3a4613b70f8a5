"""Where experiments stand in a chart: one beside the other, or over a varied key's values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvscope.report.data import Run, StudyData
from kvscope.report.lines import continued, lines_along, names
from kvscope.report.ticks import in_order, is_number, positions
from kvscope.report.traits import Option, Settings, value_of
from kvscope.report.words import key_title, value_words

# More series than this cannot be told apart by colour and line style.
MOST_SERIES = 24
# A label for each tick up to here; names of more letters together lie beside bars that lie, too.
MOST_LABELS = 40
MOST_LETTERS = 36
# Over fewer values there is no course of a line to see; categories with more go first.
A_COURSE = 3
# More charts of one thing, each along another key, are not looked at.
MOST_ROWS = 3
BY_EXPERIMENT = ""

Wanted = Callable[[Run], bool]


@dataclass(frozen=True)
class Series:
    """Experiments of one colour; a point is (place of its tick, number of the run)."""

    name: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Arrangement:
    """An axis and the series over it.

    `positions` are where the ticks stand, from 0 to their number less 1; `ordered` if they are
    numbers; `fixed` tells the settings that all series share and experiments elsewhere do not, and
    the numbers that go with the axis.
    """

    key: str
    title: str
    ticks: tuple[str, ...]
    positions: tuple[float, ...]
    ordered: bool
    series: tuple[Series, ...]
    fixed: str = ""

    @property
    def runs(self) -> set[int]:
        """Numbers of the runs that it shows."""
        return {number for series in self.series for _, number in series.points}

    @property
    def across(self) -> bool:
        """Whether bars lie, so that long labels can be read."""
        letters = sum(len(tick) + 2 for tick in self.ticks)
        many = len(self.ticks) > MOST_LABELS
        return not (self.ordered or many) and (not self.key or letters > MOST_LETTERS)


@dataclass(frozen=True)
class View:
    """Arrangements that are looked at together, and what their axes are.

    `left_out` counts the experiments that stand nowhere on them.
    """

    title: str
    arrangements: tuple[Arrangement, ...]
    left_out: int


def everything(run: Run) -> bool:
    """The runs that a chart shows unless it is of a part of them: all."""
    return True


def arrangements(study: StudyData, wanted: Wanted = everything) -> list[Arrangement]:
    """All that fit the wanted runs, the best to start with first; numbered as in the study.

    An option's own numbers come late: the runs of other options do not have them.
    """
    keys = dict.fromkeys(key for row in study.traits.values() for key in _keys(row))
    by_key = [a for key in keys if (a := _by_key(study, key, wanted)) is not None]
    whole = {key for row in study.traits.values() for key in row}
    by_key.sort(key=lambda one: (one.key in whole, *_worth(one)), reverse=True)
    return [*by_key, _by_experiment(study, wanted)]


def leading(found: Sequence[Arrangement], along: str | None = None) -> list[Arrangement]:
    """Those of the arrangements that show the most together: by the key `along`, or the first.

    Where that leaves experiments out (another grid varies another key), the next ones follow
    that show more. If all of them leave out half, they stand one beside the other instead.
    """
    *by_key, last = found
    chosen: list[Arrangement] = []
    for one in sorted(by_key, key=lambda a: a.key != along):
        shown = {number for a in chosen for number in a.runs}
        if len(chosen) < MOST_ROWS and not one.runs <= shown:
            chosen.append(one)
    together = {number for a in chosen for number in a.runs}
    return chosen if 2 * len(together) >= len(last.runs) and chosen else [last]


def views(found: Sequence[Arrangement], along: str | None = None) -> list[View]:
    """What a page offers to look at: the leading arrangements first, then each by itself."""
    first = leading(found, along)
    return [_view(rows, found[-1]) for rows in (first, *([one] for one in found if [one] != first))]


def _view(rows: Sequence[Arrangement], everyone: Arrangement) -> View:
    shown = {number for one in rows for number in one.runs}
    title = " and ".join(one.title for one in rows)
    return View(title, tuple(rows), len(everyone.runs - shown))


def _worth(arrangement: Arrangement) -> tuple[bool, int, int, bool]:
    """Lines along a course of numbers first, then what shows the most."""
    ticks = len(arrangement.ticks)
    ordered = arrangement.ordered
    return ordered and ticks >= A_COURSE, len(arrangement.runs), ticks, ordered


def _keys(traits: Settings) -> Iterable[str]:
    """The traits' keys, and those of an option's own settings."""
    for key, value in traits.items():
        yield key
        if isinstance(value, Option):
            yield from (own for own, setting in value.settings if is_number(setting))


def _by_experiment(study: StudyData, wanted: Wanted) -> Arrangement:
    runs = [(n, run) for n, run in enumerate(study.runs) if run.complete and wanted(run)]
    points = tuple((place, number) for place, (number, _) in enumerate(runs))
    ticks = tuple(run.label for _, run in runs)
    places = tuple(map(float, range(len(ticks))))
    return Arrangement(BY_EXPERIMENT, "experiment", ticks, places, False, (Series("", points),))


def _by_key(study: StudyData, key: str, wanted: Wanted) -> Arrangement | None:
    """Lines over a key's values, one for each setting of the others; None if that is no chart.

    What was planned decides what is a line, so that one that failed in part stays one. Runs that
    are not wanted by themselves are shown where they continue a line.
    """
    rows = {
        number: study.traits[run.id]
        for number, run in enumerate(study.runs)
        if value_of(study.traits[run.id], key) is not None
    }
    asked = {number: row for number, row in rows.items() if wanted(study.runs[number])}
    lines = lines_along(asked, key)
    if not 0 < len(lines) <= MOST_SERIES:
        return None
    lines = [continued(line, rows, key) for line in lines]
    shown = {n: rows[n] for line in lines for n in line.runs if study.runs[n].complete}
    values = in_order([value_of(row, key) for row in shown.values()])
    each, fixed = names([line.rest for line in lines])
    series = [
        Series(name, tuple(sorted((values.index(value_of(shown[n], key)), n) for n in present)))
        for name, line in zip(each, lines, strict=True)
        if (present := [n for n in line.runs if n in shown])
    ]
    if len(values) < 2:
        return None
    ordered = all(map(is_number, values))
    ticks = tuple(map(value_words, values))
    return Arrangement(
        key,
        key_title(key),
        ticks,
        positions(values, ticks) if ordered else tuple(map(float, range(len(values)))),
        ordered,
        tuple(series),
        fixed,
    )
