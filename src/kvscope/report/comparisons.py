"""Pairs of experiments that can be compared, and what their intervals allow to say.

Two experiments are compared if they differ in one varied key alone, one that leaves the work the
same, and both are valid. With the key that the study asks about, those may differ that go along.
A difference is one of disjoint 95 % intervals: a stricter demand than a test at 5 %. The range
given for a ratio, from the intervals' ends, is wider than its 95 % interval: nothing is claimed
too easily.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from kvscope.report.data import Run, StudyData
from kvscope.report.number import Number
from kvscope.report.settings import (
    Settings,
    differing_keys,
    following_limits,
    in_words,
    value_of,
    without,
)
from kvscope.report.words import key_title, percent, value_words
from kvscope.runschema import MODELED

# Keys whose values ask for different work: what one costs says nothing of the other.
DIFFERENT_WORK = ("workload", "model", "seed")
# Keys whose values are names enough.
POLICIES = ("batching", "overflow")


@dataclass(frozen=True)
class Pair:
    """Two valid experiments that differ in `key` alone: `other` instead of `base`.

    The names are those of the key's values; `context` holds the other settings, which
    both have, but for limits that follow from them.
    """

    key: str
    base: Run
    other: Run
    base_name: str
    other_name: str
    context: Settings

    @property
    def change(self) -> str:
        """'Chunked (64 tokens) instead of mixed'; pairs of one change belong together."""
        title = "" if self.key in POLICIES else f"{key_title(self.key)} "
        return capitalize_first(f"{title}{self.other_name} instead of {self.base_name}")

    def compared(self, metric: str) -> "Ratio | None":
        """other / base of a metric; None where that is not defined.

        Modeled numbers have no noise: two without an interval are compared as they are.
        """
        other, base = self.other.number(metric), self.base.number(metric)
        modeled = self.other.time_source == self.base.time_source == MODELED
        if modeled and not (other.has_interval or base.has_interval):
            return ratio(other.exact, base.exact)
        return ratio(other, base)


@dataclass(frozen=True)
class Ratio:
    """Ratio of two positive means, with the range that their intervals' ends allow."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 if the intervals are disjoint and it is larger than 1, -1 if less, otherwise 0."""
        return (self.low > 1) - (self.high < 1)

    @property
    def change(self) -> str:
        """'12 % lower'."""
        size, way = (self.value - 1, "higher") if self.value > 1 else (1 - self.value, "lower")
        return f"{percent(size)} {way}"

    @property
    def range(self) -> str:
        """What the ends of the intervals allow for a difference: ' (3 % to 9 %)'.

        Empty for two numbers without noise.
        """
        if self.low == self.high:
            return ""
        low, high = (
            (self.low - 1, self.high - 1) if self.sign > 0 else (1 - self.high, 1 - self.low)
        )
        if not math.isfinite(high):
            return f" (at least {percent(low)})"
        return f" ({percent(low)} to {percent(high)})"


def ratio(other: Number, base: Number) -> Ratio | None:
    """other / base, of numbers that cannot be negative; None where an interval is missing.

    None, too, where the base is not above 0: there is nothing to be a multiple of.
    """
    if not (other.has_interval and base.has_interval and base.value > 0):
        return None
    highest = other.high / base.low if base.low > 0 else math.inf
    return Ratio(other.value / base.value, max(0.0, other.low) / base.high, highest)


def pairs(study: StudyData) -> Iterator[Pair]:
    """Pairs of valid experiments that differ in one key, one of them having its base value."""
    valid = [run for run in study.runs if run.valid]
    limits = following_limits(list(study.traits.values()))
    keys = dict.fromkeys(key for row in study.compared.values() for key in row)
    for key in keys:
        if key.split(".")[0] in DIFFERENT_WORK:
            continue
        base, along = _base_value(study, key), _along(study, key)
        bases: dict[str, list[Run]] = defaultdict(list)
        for run in valid:
            if study.compared[run.id].get(key) == base:
                bases[_independent(study, run, key)].append(run)
        for other in valid:
            if study.compared[other.id].get(key) in (base, None):
                continue
            for candidate in bases[_independent(study, other, key)]:
                one, two = study.compared[candidate.id], study.compared[other.id]
                if set(differing_keys(one, two)) - along == {key}:
                    yield _pair(study, key, candidate, other, limits)


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
        place = 0 if key == asked else order.get(key.split(".")[0], 3)
        return (place, -len(group)) if place == 3 else (place, 0)

    return sorted(groups.values(), key=rank)


def summarize_ratios(ratios: Sequence[Ratio | None], of: str = "") -> str:
    """How many of some ratios differ from 1, by how much, and how many do not or are not known.

    `of` names what they are ratios of, unless the sentence has said it.
    """
    known = [one for one in ratios if one is not None]
    parts = []

    def many(count: int) -> str:
        return f"in all {count}" if count == len(ratios) > 1 else f"in {count}"

    for sign, way in ((-1, "lower"), (1, "higher")):
        changes = [abs(one.value - 1) for one in known if one.sign == sign]
        if changes:
            parts.append(
                f"{way}{f' {of}' if of else ''} {many(len(changes))} (by {_span(changes)})"
            )
    same = sum(1 for one in known if one.sign == 0)
    what = f" in {of}" if of and not parts else ""
    parts += [f"no difference{what} beyond the noise {many(same)}"] if same else []
    unknown = len(ratios) - len(known)
    parts += [f"{unknown} not compared"] if unknown else []
    return ", ".join(parts)


def capitalize_first(text: str) -> str:
    """The text with its first letter large."""
    return text[:1].upper() + text[1:]


def _span(changes: list[float]) -> str:
    low, high = percent(min(changes)), percent(max(changes))
    return low if low == high else f"{low} to {high}"


def _pair(study: StudyData, key: str, base: Run, other: Run, untold: Set[str]) -> Pair:
    one, two = study.traits[base.id], study.traits[other.id]
    rest = without(two, key)
    context = {k: v for k, v in without(one, key).items() if rest.get(k) == v and k not in untold}
    base_name, other_name = (value_words(value_of(row, key)) for row in (one, two))
    return Pair(key, base, other, base_name, other_name, context)


def _base_value(study: StudyData, key: str) -> Any:
    """What the others are compared with: as the study asks, else the key's first value in it."""
    if study.question and study.question.key == key:
        return study.question.base
    return next((v for row in study.compared.values() if (v := row.get(key)) is not None), None)


def _along(study: StudyData, key: str) -> Set[str]:
    """Keys that may differ with this one."""
    asked = study.question
    return {*asked.along} if asked and asked.key == key else set()


def _independent(study: StudyData, run: Run, key: str) -> str:
    """The settings that a partner must share: all but the key and what comes with it."""
    apart = {key, *_along(study, key)}
    rest = {
        k: v
        for k, v in study.compared[run.id].items()
        if k not in apart and not k.startswith(f"{key}.")
    }
    return repr(sorted(rest.items()))


def context_of(pair: Pair, known: Settings | None = None) -> str:
    """What both have, where the study varies it and `known` does not say it: 'block size 32'."""
    return in_words({k: v for k, v in pair.context.items() if k not in (known or {})})


def common_context(found: Sequence[Pair]) -> Settings:
    """What all of several pairs have in their contexts; nothing for one pair."""
    first, *others = [pair.context for pair in found] or [{}]
    if not others:
        return {}
    return {k: v for k, v in first.items() if all(context.get(k) == v for context in others)}
