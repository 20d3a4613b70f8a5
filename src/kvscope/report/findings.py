"""Findings: what is compared, in which metric, and the ratio with its 95 % interval, as rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from kvscope.analyse.estimates import INDEPENDENT, Ratio
from kvscope.analyse.metric import Measure
from kvscope.report.comparisons import Pair, count_words, group_by_change, mean_ratio, pairs
from kvscope.report.data import StudyData
from kvscope.report.headline import leads
from kvscope.report.proofs import same_tokens
from kvscope.report.tables import main_columns
from kvscope.report.words import plural, signed_percent
from kvscope.runfile import TRACING

MOST = 24  # rows that are shown at once
MOST_PAIRS = 200  # rows of single pairs; comparisons.csv has all


@dataclass(frozen=True)
class Finding:
    """A metric of one change: the ratio of a pair, or of several and their geometric mean.

    `where` are the settings that both of a pair have, in words, or how many of several pairs
    differ in which direction.
    """

    change: str
    where: str
    metric: Measure
    ratios: tuple[Ratio, ...]

    @cached_property
    def ratio(self) -> Ratio:
        """The ratio, or the geometric mean."""
        return mean_ratio(self.ratios)

    @property
    def differs(self) -> bool:
        """Whether the interval of any of its ratios is all on one side of 1."""
        return any(one.sign for one in self.ratios)

    @property
    def verdict(self) -> str:
        """'better' or 'worse'; empty if the interval allows either, or neither is better."""
        return {1: "better", -1: "worse"}.get(self.ratio.sign * self.metric.better, "")

    @property
    def difference(self) -> str:
        """The ratio as a difference from the base: '-12 %'."""
        return signed_percent(self.ratio.value)

    @property
    def interval(self) -> str:
        """The interval of the difference: '-15 % to -9 %'; empty for numbers without noise."""
        low, high = self.ratio.low, self.ratio.high
        return f"{signed_percent(low)} to {signed_percent(high)}" if low < high else ""


@dataclass(frozen=True)
class Findings:
    """What a study shows.

    `differences` and `unchanged` have a row for each change and metric: with a difference beyond
    the noise, and without. `pairs` are the single pairs of changes that several pairs have, where
    some may be `left_out`.
    `checks` is what was verified beside them, `caveats` what limits the comparisons.
    """

    differences: tuple[Finding, ...]
    unchanged: tuple[Finding, ...]
    pairs: tuple[Finding, ...]
    left_out: bool
    checks: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def shown(self) -> Sequence[Finding]:
        """The differences that are shown at once."""
        return self.differences[:MOST]

    @property
    def more(self) -> Sequence[Finding]:
        """The differences after those."""
        return self.differences[MOST:]


def findings(study: StudyData) -> Findings:
    """The comparisons of a study: those of the key that it asks about first."""
    groups = group_by_change(pairs(study), study.question.key if study.question else "")
    metrics = compared_metrics(study)
    found = [one for group in groups for one in _rows(group, metrics)]
    several = [pair for group in groups if len(group) > 1 for pair in group]
    single = [one for pair in several for one in _rows([pair], metrics)]
    caveats = [*_apart(found), *([] if found else _nothing_compared(study, bool(groups)))]
    return Findings(
        tuple(one for one in found if one.differs),
        tuple(one for one in found if not one.differs),
        tuple(single[:MOST_PAIRS]),
        len(single) > MOST_PAIRS,
        (*same_tokens(study), *_events(study)),
        tuple(caveats),
    )


def by_change(rows: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Rows that follow one another and are of the same change, together."""
    return [(change, list(same)) for change, same in groupby(rows, lambda one: one.change)]


def compared_metrics(study: StudyData) -> list[Measure]:
    """What the study's figures show above all, then the first columns; those with a direction."""
    leading = [one for _, lead in leads(study) for one in lead.panel]
    columns = [one for one in main_columns(study) if one.first]
    return [one for one in dict.fromkeys([*leading, *columns]) if one.better]


def _rows(group: Sequence[Pair], metrics: Sequence[Measure]) -> Iterator[Finding]:
    for metric in metrics:
        found = [(pair, one) for pair in group if (one := pair.compared(metric.name))]
        ratios = tuple(ratio for _, ratio in found)
        if len(found) == 1:
            yield Finding(group[0].change, found[0][0].where, metric, ratios)
        elif found:
            where = f"{plural(len(found), 'pair')}: {count_words(ratios)}"
            yield Finding(group[0].change, where, metric, ratios)


def _events(study: StudyData) -> list[str]:
    """How many events the traced experiments recorded; those of imports are not counted."""
    tracing = [run.facts.get(TRACING, {}) for run in study.complete]
    counted = [one for one in tracing if one.get("dropped_events") is not None]
    if not counted:
        return []
    events, dropped = (sum(one[key] for one in counted) for key in ("events", "dropped_events"))
    return [
        f"{events:,} accesses to the KV cache recorded, {dropped:,} dropped "
        f"({plural(len(counted), 'traced experiment')})."
    ]


def _nothing_compared(study: StudyData, has_pairs: bool) -> list[str]:
    if has_pairs:
        return ["No comparison: an interval is missing."]
    if len(study.runs) < 2 or not study.keys:
        return []
    if (valid := study.count(lambda run: run.valid)) < 2:
        return [f"No comparison: {plural(valid, 'experiment')} valid, two are needed."]
    return ["No comparison: no two valid experiments differ in one key alone."]


def _apart(found: Sequence[Finding]) -> list[str]:
    ratios = [ratio for one in found for ratio in one.ratios]
    if not any(ratio.how == INDEPENDENT for ratio in ratios):
        return []
    which = "" if all(ratio.how == INDEPENDENT for ratio in ratios) else "Some experiments were "
    return [
        f"{which or 'The experiments were '}not measured in the same rounds: their intervals do "
        "not have in them what the machine did between the experiments."
    ]
