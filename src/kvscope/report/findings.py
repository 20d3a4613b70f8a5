"""What was found, in sentences, claimed only where 95 % confidence intervals are disjoint.

Two experiments are compared if they differ in one varied key alone, one that leaves the work the
same, and both are valid. Disjoint
intervals are a stricter demand than a test at 5 %, and the range given for a ratio, from the
intervals' ends, is wider than its 95 % interval: nothing is claimed too easily.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvscope.report.data import Number, Run, StudyData
from kvscope.report.differences import differing_keys
from kvscope.report.words import (
    NBSP,
    PREEMPTIONS,
    THROUGHPUT,
    joined,
    key_title,
    number_text,
    percent,
    plural,
    reason_in_words,
    setting_text,
    value_text,
)

SENTENCES = 12
# Up to so many pairs of one change get a sentence each; more are summed up in one.
SINGLE_PAIRS = 4
# Keys whose values ask for different work: throughput of one says nothing of the other's.
DIFFERENT_WORK = ("workload", "model", "seed")


@dataclass(frozen=True)
class Pair:
    """Two valid experiments that differ in `key` alone: `other` instead of `base`."""

    key: str
    base: Run
    other: Run

    @property
    def change(self) -> tuple[str, str, str]:
        """Key, value of the base, value of the other: pairs of one change belong together."""
        return self.key, _value(self.base, self.key), _value(self.other, self.key)


@dataclass(frozen=True)
class Ratio:
    """Ratio of two positive means, with the range that their intervals' ends allow."""

    value: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the two intervals are disjoint."""
        return self.low > 1 or self.high < 1


def ratio(other: Number, base: Number) -> Ratio | None:
    """other / base, of numbers that cannot be negative; None where an interval is missing."""
    if not (other.has_interval and base.has_interval):
        return None
    highest = other.high / base.low if base.low > 0 else math.inf
    return Ratio(other.value / base.value, max(0.0, other.low) / base.high, highest)


def findings(study: StudyData) -> list[str]:
    """A few sentences; the first ones are comparisons of throughput, the last ones caveats."""
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs(study):
        groups[pair.change].append(pair)
    sentences = [
        sentence
        for group in groups.values()
        for sentence in (
            [_one(pair, study) for pair in group]
            if len(group) <= SINGLE_PAIRS
            else [_many(group, study)]
        )
    ]
    left = len(sentences) - SENTENCES
    if left > 0:
        sentences = [*sentences[:SENTENCES], f"{plural(left, 'more comparison')} not listed here."]
    return [*(sentences or _nothing_compared(study)), *_caveats(study)]


def pairs(study: StudyData) -> Iterator[Pair]:
    """Pairs of valid experiments that differ in one key, one of them having its base value."""
    valid = [run for run in study.runs if run.valid]
    for key in study.keys:
        if key.split(".")[0] in DIFFERENT_WORK:
            continue
        base = _base_value(study, key)
        others = [run for run in valid if run.varied.get(key) not in (base, None)]
        bases: dict[str, list[Run]] = defaultdict(list)
        for run in valid:
            if run.varied.get(key) == base:
                bases[_independent(run, key)].append(run)
        for other in others:
            for candidate in bases[_independent(other, key)]:
                if differing_keys(candidate.varied, other.varied) == [key]:
                    yield Pair(key, candidate, other)


def _base_value(study: StudyData, key: str) -> Any:
    """What the others are compared with: the key's first value in the plan."""
    return next((v for run in study.runs if (v := run.varied.get(key)) is not None), None)


def _independent(run: Run, key: str) -> str:
    """The settings that a partner must share: all but the key and what comes with it."""
    rest = {k: v for k, v in run.varied.items() if k != key and not k.startswith(f"{key}.")}
    return repr(sorted(rest.items()))


def _one(pair: Pair, study: StudyData) -> str:
    compared = ratio(*(run.number(THROUGHPUT.metric) for run in (pair.other, pair.base)))
    where = _context(pair, study)
    instead = f"{_change(pair)}{f' ({where})' if where else ''}"
    if compared is None:
        return f"{instead}: not compared, an interval is missing."
    if not compared.differs:
        return f"{instead}: no difference in throughput beyond the noise{_preemptions(pair)}."
    return f"{instead}: {_effect(compared)}{_preemptions(pair)}."


def _many(group: list[Pair], study: StudyData) -> str:
    numbers = [(p.other.number(THROUGHPUT.metric), p.base.number(THROUGHPUT.metric)) for p in group]
    found = [r for pair in numbers if (r := ratio(*pair)) is not None]
    lower = [1 - r.value for r in found if r.high < 1]
    higher = [r.value - 1 for r in found if r.low > 1]
    parts = [
        f"{way} throughput in {len(changes)} (by {_range(changes)})"
        for way, changes in (("lower", lower), ("higher", higher))
        if changes
    ]
    same = len(found) - len(lower) - len(higher)
    parts += [f"no difference beyond the noise in {same}"] if same else []
    parts += [f"{len(group) - len(found)} not compared"] if len(found) < len(group) else []
    return f"{_change(group[0])}, {plural(len(group), 'pair')}: {joined(parts)}."


def _change(pair: Pair) -> str:
    key, base, other = pair.change
    title = key_title(key)
    return f"{title[0].upper()}{title[1:]} {other} instead of {base}"


def _value(run: Run, key: str) -> str:
    """A key's value with what comes with it: 'chunked, chunk (tokens) 64'."""
    with_it = [
        setting_text(k, v)
        for k, v in run.varied.items()
        if k.startswith(f"{key}.") and v is not None
    ]
    return ", ".join([value_text(run.varied[key]), *with_it])


def _context(pair: Pair, study: StudyData) -> str:
    """The settings the two share, where the study varies them."""
    shared = [
        setting_text(key, value)
        for key in study.keys
        if key != pair.key
        and not key.startswith(f"{pair.key}.")
        and (value := pair.base.varied.get(key)) is not None
        and value == pair.other.varied.get(key)
    ]
    return ", ".join(shared)


def _effect(compared: Ratio) -> str:
    if compared.high < 1:
        size, ends, way = 1 - compared.value, (1 - compared.high, 1 - compared.low), "lower"
    else:
        size, ends, way = compared.value - 1, (compared.low - 1, compared.high - 1), "higher"
    low = percent(ends[0])
    span = f"{low} to {percent(ends[1])}" if math.isfinite(ends[1]) else f"at least {low}"
    return f"{percent(size)} {way} throughput (95{NBSP}% intervals: {span})"


def _range(changes: list[float]) -> str:
    low, high = percent(min(changes)), percent(max(changes))
    return low if low == high else f"{low} to {high}"


def _preemptions(pair: Pair) -> str:
    base, other = (run.number(PREEMPTIONS.metric).value for run in (pair.base, pair.other))
    if not base > 0 and not other > 0:
        return ""
    return f"; {number_text(other)} preemptions a repeat instead of {number_text(base)}"


def _nothing_compared(study: StudyData) -> list[str]:
    valid = study.count(lambda run: run.valid)
    if len(study.runs) < 2 or not study.keys:
        return []
    if valid < 2:
        return [f"Nothing is compared: {plural(valid, 'experiment')} valid, two are needed."]
    return ["Nothing is compared: no two valid experiments differ in one key alone."]


def _caveats(study: StudyData) -> list[str]:
    doubtful = [run for run in study.complete if not run.valid]
    if not doubtful:
        return []
    names = list(dict.fromkeys(name for run in doubtful for name in run.reasons))
    why = "; ".join(f"{name}: {reason_in_words(name)}" for name in names)
    is_are, its = ("is", "its") if len(doubtful) == 1 else ("are", "their")
    return [
        f"{plural(len(doubtful), 'experiment')} {is_are} not valid and not compared; {its} "
        f"numbers are shown as measured ({why})."
    ]
