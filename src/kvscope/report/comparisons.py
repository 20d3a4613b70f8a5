"""Pairs of experiments that are compared (`plan.pairs`), and the ratios of their metrics.

Two experiments differ in a metric if the 95 % interval of its ratio does not have 1 in it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from kvscope.base.statistics import (
    UNKNOWN,
    Interval,
    estimate,
    mean_difference,
    mean_ratio,
)
from kvscope.base.time_sources import REHEARSED, mark_of
from kvscope.metrics.estimates import Estimates
from kvscope.plan.named import name_of
from kvscope.plan.traits import (
    Settings,
    in_words,
    is_of_key,
    key_title,
    setting_words,
    value_of,
    value_words,
    without,
)
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.words import NBSP, decimals_for, percent

EVEN_SHARE = 0.01
"""As much more or less of a metric as is no difference between policies over seeds."""
# Keys whose values are names enough.
POLICIES = ("batching", "overflow")


@dataclass(frozen=True)
class Comparison:
    """Comparison of a metric in a pair: ratio (None where a value is not above 0) and difference.

    The difference is in the metric's unit, its interval NaN where it is not known.
    """

    ratio: Interval | None
    apart: Interval

    @property
    def sign(self) -> int:
        """1 if the other is surely larger than the base, -1 if it is smaller, else 0."""
        return self.ratio.side_of(1) if self.ratio else self.apart.side_of(0)

    @property
    def known(self) -> bool:
        """Whether there is a ratio, or a difference with its interval."""
        return self.ratio is not None or self.apart.has_interval


def comparison(estimates: Estimates, metric: str, other: str, base: str) -> Comparison:
    """The metric of an experiment beside that of another, by the names of both."""
    interval = estimates.apart(metric, other, base)
    return Comparison(estimates.ratio(metric, other, base), interval)


@dataclass(frozen=True)
class Pair:
    """Two valid experiments that differ in `key` alone: `other` instead of `base`.

    The names are those of the key's values; `context` holds the other settings, which
    both have, but for limits that follow from them. `estimates` are those of the study.
    """

    key: str
    base: ReportedRun
    other: ReportedRun
    base_name: str
    other_name: str
    context: Settings
    estimates: Estimates
    named: bool = False  # by the study, which is said without the key

    @property
    def where(self) -> str:
        """Settings that both runs have in common, among those the study varies: 'block size 32'."""
        return in_words(self.context)

    @property
    def rehearsed(self) -> bool:
        """Whether the pair was rehearsed: both of its runs are, or neither."""
        return self.base.rehearsed

    @property
    def change(self) -> str:
        """'KV cache 8 instead of 64 blocks'; pairs of one change belong together.

        Of rehearsed experiments it says that they are.
        """
        title = "" if self.key in POLICIES or self.named else key_title(self.key)
        name, _, unit = title.removesuffix(")").partition(" (")
        return capitalize_first(
            f"{name} {self.other_name} instead of {self.base_name} {unit}".strip()
            + mark_of(REHEARSED if self.rehearsed else None)
        )

    def ratio(self, metric: str) -> Interval | None:
        """other / base of a metric; None where that is not defined."""
        return self.estimates.ratio(metric, self.other.id, self.base.id)

    def compared(self, metric: str) -> Comparison | None:
        """The metric of the other beside that of the base.

        None where nothing is known of it, or where both are 0: neither has any of it.
        """
        if self.base.number(metric).value == self.other.number(metric).value == 0:
            return None
        compared = comparison(self.estimates, metric, self.other.id, self.base.id)
        return compared if compared.known else None


def half_words(ratio: Interval, way: str | None = None) -> str:
    """'12 % (± 3) lower': the difference, and half the width of its interval, in percent."""
    change, half = abs(ratio.value - 1), (ratio.high - ratio.low) / 2
    direction = ("higher" if ratio.value > 1 else "lower") if way is None else way
    margin = f" (±{NBSP}{_points(half)})" if 0 < half < math.inf else ""
    return f"{percent(change)}{margin} {direction}".strip()


def ratio_of_seeds(
    study: StudyData,
    metric: str,
    first: Mapping[int, ReportedRun],
    second: Mapping[int, ReportedRun],
    one_draw: float = 0.0,
) -> Interval:
    """A metric of the first / that of the second, of runs by seed.

    With several seeds that both have, it is the geometric mean of the ratios of each seed, with
    Student's interval of their logarithms; of one seed it is that of the two runs, and at least
    `one_draw` on each side (`error_of_one_draw`). `EVEN_SHARE` is the least half width of either.
    UNKNOWN where a value is not above 0.
    """
    even = EVEN_SHARE
    shared = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    values = [(a.number(metric).value, b.number(metric).value) for a, b in shared]
    if len(shared) > 1:
        if not all(min(pair) > 0 for pair in values):
            return UNKNOWN
        logs = estimate([math.log(a / b) for a, b in values])
        interval = Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))
    else:
        a, b = next(iter(first.values())), next(iter(second.values()))
        if not min(a.number(metric).value, b.number(metric).value) > 0:
            return UNKNOWN
        value = a.number(metric).value / b.number(metric).value
        ratio = study.estimates.ratio(metric, a.id, b.id)
        interval, even = ratio or Interval(value, value, value), max(EVEN_SHARE, one_draw)
    least, most = interval.value * (1 - even), interval.value * (1 + even)
    return replace(interval, low=min(interval.low, least), high=max(interval.high, most))


def error_of_one_draw(found: Iterable[Pair], metric: str) -> float:
    """The negative control of what one seed shows: by how much another seed gives another ratio.

    Of all changes that are there with several seeds, the most by which a seed's ratio is off the
    geometric mean of all its seeds, as a share; 0 without several seeds.
    """
    draws: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair in found:
        ratio = pair.ratio(metric)
        if ratio is not None and 0 < ratio.value < math.inf:
            where = in_words({k: v for k, v in pair.context.items() if k != "seed"})
            draws[pair.change, where].append(ratio.value)
    several = [ratios for ratios in draws.values() if len(ratios) > 1]
    errors = (abs(ratio / geometric_mean(row) - 1) for row in several for ratio in row)
    return max(errors, default=0.0)


def mean_of(compared: Sequence[Comparison]) -> Interval | None:
    """The ratio of one comparison, or the geometric mean of several; None if one has no ratio."""
    ratios = [comparison.ratio for comparison in compared if comparison.ratio]
    return mean_ratio(ratios) if ratios and len(ratios) == len(compared) else None


def mean_apart(compared: Sequence[Comparison]) -> Interval:
    """The mean of the differences of several comparisons."""
    return mean_difference([comparison.apart for comparison in compared])


def pairs_of_one_kind(study: StudyData) -> list[Pair]:
    """The pairs of experiments that were not rehearsed; all of them where each pair was."""
    every = [*pairs(study)]
    return [pair for pair in every if not pair.rehearsed] or every


def pairs(study: StudyData) -> Iterator[Pair]:
    """The pairs of valid experiments that are compared (`plan.pairs`).

    Of a pair both are rehearsed, or neither is.
    """
    valid = {run.id: run for run in study.runs if run.valid}
    for key, ids in study.compared.pairs.items():
        for base, other in ((valid.get(first), valid.get(second)) for first, second in ids):
            if base and other and base.rehearsed == other.rehearsed:
                yield _pair(study, key, base, other)


def group_by_change(found: Iterator[Pair], asked: str = "") -> list[list[Pair]]:
    """Pairs of the same change together: of the key that is asked about first, then of policies.

    Of the others those with the most pairs, which say the most.
    """
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in found:
        groups[pair.change].append(pair)
    order = {"overflow": 1, "batching": 2}

    def rank(group: list[Pair]) -> tuple[int, int]:
        key = group[0].key
        place = 0 if asked and is_of_key(key, asked) else order.get(key.split(".")[0], 3)
        return (place, -len(group)) if place == 3 else (place, 0)

    return sorted(groups.values(), key=rank)


def count_words(compared: Sequence[Comparison]) -> str:
    """How many of several are lower, higher or neither: '3 lower, 1 no difference'."""
    signs = Counter(comparison.sign for comparison in compared)
    words = ((-1, "lower"), (1, "higher"), (0, "no difference"))
    return ", ".join(f"{signs[sign]} {word}" for sign, word in words if signs[sign])


def capitalize_first(text: str) -> str:
    """The text with its first letter large."""
    return text[:1].upper() + text[1:]


def _points(half: float) -> str:
    """Half the width of an interval in percent, of one significant digit, or whole from 1 on."""
    return f"{100 * half:.{min(decimals_for(100 * half, 1), 2)}f}"


def _pair(study: StudyData, key: str, base: ReportedRun, other: ReportedRun) -> Pair:
    first, second = study.traits[base.id], study.traits[other.id]
    settings = without(second, key)
    alike = {k: v for k, v in without(first, key).items() if settings.get(k) == v}
    context = {k: v for k, v in alike.items() if k not in study.limits}
    values = [value_of(row, key) for row in (first, second)]
    named = any(name_of(value) is not None for value in values)
    names = [setting_words(key, value) if named else value_words(value) for value in values]
    return Pair(key, base, other, names[0], names[1], context, study.estimates, named)
