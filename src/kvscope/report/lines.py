"""Which experiments make a line along a key: those that agree in everything else.

Studies link numbers: longer prompts come with a larger cache, and for comparison with twice that.
A number that goes with the key is no difference of its own, so the runs of a line may differ in
it. Which numbers these are, a study does not say; it is read so that the most runs stand on the
fewest lines.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from kvscope.report.ticks import is_number
from kvscope.report.traits import Settings, in_words, value_of, without

# The order in which a study is thought out: a cache is sized after the requests it serves, not the
# requests after the cache.
SECTIONS = ("model", "device", "workload", "batching", "engine", "overflow", "cache")
# Studies link few numbers; more would be long to try.
MOST_LINKED = 4


@dataclass(frozen=True)
class Span:
    """The values a linked number has along a line."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Line:
    """Runs of different values of a key, and the settings they share; spans of linked numbers."""

    runs: tuple[int, ...]
    rest: Settings


def lines_along(rows: dict[int, Settings], key: str) -> list[Line]:
    """The lines along a key; none if two runs would be one point."""
    rests = {number: without(row, key) for number, row in rows.items()}
    for runs in _grouped(rests):
        if len({value_of(rows[number], key) for number in runs}) < len(runs):
            return []
    best = _reading(rows, rests, key, ())
    candidates = _may_be_linked(rests, key)
    for count in range(1, len(candidates) + 1):
        for linked in combinations(candidates, count):
            if _placed(best) < len(rows):
                best = max(best, _reading(rows, rests, key, linked), key=_worth)
    return sorted(best, key=lambda line: line.runs)


def continued(line: Line, rows: dict[int, Settings], key: str) -> Line:
    """The line with the runs that differ from its own in the key's value alone."""
    taken = {value_of(rows[number], key) for number in line.runs}
    more = [
        number
        for number, row in rows.items()
        if without(row, key) == line.rest and value_of(row, key) not in taken
    ]
    return Line((*line.runs, *more), line.rest)


def names(rests: Sequence[Settings]) -> tuple[list[str], str]:
    """What tells lines apart, for each of them, and what they have in common.

    A number is left out of the names where the other settings tell them apart as well, limits of
    the engine first.
    """
    keys = list(dict.fromkeys(key for rest in rests for key in rest))
    common = [key for key in keys if all(rest.get(key) == rests[0].get(key) for rest in rests)]
    told = [key for key in keys if key not in common]
    for key in sorted(reversed(told), key=lambda key: not key.startswith("engine.")):
        fewer = [other for other in told if other != key]
        numbers = all(is_number(v := rest.get(key)) or isinstance(v, Span) for rest in rests)
        if numbers and _different(rests, fewer) == _different(rests, told):
            told = fewer
    return (
        [in_words(_only(rest, told)) for rest in rests],
        in_words(_only(rests[0], common)),
    )


def _reading(
    rows: dict[int, Settings], rests: dict[int, Settings], key: str, linked: Sequence[str]
) -> list[Line]:
    """The lines of two runs or more if the `linked` numbers are no differences of their own.

    Where a value of the key has several runs then, as many lines run beside each other, the first
    one through the smallest numbers (see `_beside`).
    """
    lines = []
    for runs in _grouped({number: _except(rest, linked) for number, rest in rests.items()}):
        by_value: dict[Any, list[int]] = defaultdict(list)
        for number in sorted(runs, key=lambda number: _numbers(rests[number], linked)):
            by_value[value_of(rows[number], key)].append(number)
        beside = _beside(by_value)
        if not beside or not all(_goes_along(one, rests, linked) for one in beside):
            beside = _grouped({number: rests[number] for number in runs})
        lines += [_line(one, rests, linked) for one in beside if len(one) > 1]
    return lines


def _beside(by_value: dict[Any, list[int]]) -> list[tuple[int, ...]]:
    """The first runs of all values, then the second ones, and so on.

    Every value must have as many, but that the largest of three or more may lack the last (what
    is ample for them has no room). Empty otherwise: nothing tells then what belongs together.
    """
    ordered = all(map(is_number, by_value))
    values = sorted(by_value) if ordered else list(by_value)
    counts = [len(by_value[value]) for value in values]
    falling = ordered and len(counts) > 2 and counts == sorted(counts, reverse=True)
    if len(set(counts)) > 1 and not falling:
        return []
    return [
        tuple(by_value[value][place] for value in values if place < len(by_value[value]))
        for place in range(counts[0])
    ]


def _goes_along(runs: Sequence[int], rests: dict[int, Settings], linked: Sequence[str]) -> bool:
    """Whether each linked number stays, or only ever grows or shrinks, and that at most places."""
    for key in linked:
        values = _numbers_of(key, (rests[number] for number in runs))
        different = len(set(values))
        if different > 1 and (
            2 * different <= len(values) or values not in (sorted(values), sorted(values)[::-1])
        ):
            return False
    return True


def _line(runs: tuple[int, ...], rests: dict[int, Settings], linked: Sequence[str]) -> Line:
    rest = dict(rests[runs[0]])
    for key in linked:
        found = [value for n in runs if (value := rests[n].get(key)) is not None]
        if found and min(found) < max(found):
            rest[key] = Span(min(found), max(found))
    return Line(tuple(sorted(runs)), rest)


def _may_be_linked(rests: dict[int, Settings], key: str) -> list[str]:
    """The numbers that vary, and that a study may have thought of after the key."""
    keys = dict.fromkeys(other for rest in rests.values() for other in rest)
    found = []
    for other in keys:
        values = {rest.get(other) for rest in rests.values()} - {None}
        if _section(other) >= _section(key) and len(values) > 1 and all(map(is_number, values)):
            found.append(other)
    return found[-MOST_LINKED:]


def _placed(lines: Sequence[Line]) -> int:
    return sum(len(line.runs) for line in lines)


def _worth(lines: Sequence[Line]) -> tuple[int, int]:
    """The most runs on the fewest lines."""
    return _placed(lines), -len(lines)


def _grouped(rests: dict[int, Settings]) -> list[tuple[int, ...]]:
    """Runs of the same settings together, in the order of the study."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, rest in rests.items():
        groups[repr(sorted(rest.items()))].append(number)
    return [tuple(numbers) for numbers in groups.values()]


def _numbers(rest: Settings, keys: Sequence[str]) -> list[float]:
    return [number for key in keys for number in _numbers_of(key, [rest])]


def _numbers_of(key: str, rests: Iterable[Settings]) -> list[float]:
    return [-1.0 if rest.get(key) is None else float(rest[key]) for rest in rests]


def _section(key: str) -> int:
    name = key.partition(".")[0]
    return SECTIONS.index(name) if name in SECTIONS else len(SECTIONS)


def _except(settings: Settings, keys: Sequence[str]) -> Settings:
    return {key: value for key, value in settings.items() if key not in keys}


def _only(settings: Settings, keys: Iterable[str]) -> Settings:
    return {key: settings.get(key) for key in keys}


def _different(rests: Sequence[Settings], keys: Sequence[str]) -> int:
    """How many of the lines these keys can tell apart."""
    return len({repr(_only(rest, keys)) for rest in rests})
