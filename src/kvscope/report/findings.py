"""Findings: the headline, and what is compared in which metric with its 95 % interval, as rows."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from kvscope.base.quantities import join_words, plural
from kvscope.base.statistics import Interval, mean_ratio
from kvscope.base.time_sources import mark_of
from kvscope.metrics.estimates import INDEPENDENT
from kvscope.metrics.measure import Measure, is_of_time, measures
from kvscope.plan.figures import Axes
from kvscope.plan.traits import MINOR, in_words, is_of_key
from kvscope.report.comparisons import (
    EVEN_SHARE,
    Comparison,
    Pair,
    count_words,
    error_of_one_draw,
    group_by_change,
    half_words,
    mean_apart,
    mean_of,
    pairs,
    pairs_of_one_kind,
)
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing, Lead
from kvscope.report.figures.registry import figures, marked
from kvscope.report.not_modeled import WITHOUT, is_ample, lacks_submission
from kvscope.report.tables import main_columns
from kvscope.report.validity import same_tokens
from kvscope.report.words import (
    NBSP,
    difference_text,
    estimate_text,
    interval_words,
    percent,
    signed_percent,
)

Found = tuple[Pair, Comparison]
DEFAULT, WORK, OVERFLOW = "throughput", "workload", "overflow"
MOST_PANELS = 3  # of a chart, that the sentence names one by one
MOST = 24  # rows that are shown at once
MOST_PAIRS = 200  # rows of single pairs; comparisons.csv has all


@dataclass(frozen=True)
class Headline:
    """Headline of the page: a sentence, empty without numbers, and the chart beside it, if any."""

    sentence: str
    title: str = ""
    drawing: Drawing | None = None


def headline(study: StudyData) -> Headline:
    """The best answer to the study's question, or else the largest difference.

    In the metric of its first figure. Along x, or else among the colours, or else in anything the
    study varies.
    """
    for name, lead in leads(study):
        declared = study.declared_axes(name)
        if drawing := lead.draw(study, declared):
            sentence = (
                _largest(study, study.axes_of(declared), lead) if lead.measure.better else ""
            ) or _extremes(study, lead.measure)
            chart = marked(study, replace(drawing, views=drawing.views[:1]))
            return Headline(sentence, lead.measure.heading, chart)
    return Headline("")


def leads(study: StudyData) -> Iterator[tuple[str, Lead]]:
    """Metrics that the study's figures show first, by the figure's name."""
    for name in (*(request.name for request in study.figures), DEFAULT):
        if name in figures() and (lead := figures()[name].lead):
            yield name, lead


def rule(study: StudyData) -> str:
    """Sentence on the comparison that is the headline; empty if no figure can open the page."""
    first = next(leads(study), None)
    if first is None:
        return ""
    if not first[1].measure.better:
        return "The headline has the least and the greatest value of what the first figure shows."
    largest = "the largest difference along the axes of the first figure"
    answer = "the best answer to the study's question in what the first figure shows, or else "
    return f"The headline is {answer if study.question else ''}{largest}."


def _largest(study: StudyData, axes: Sequence[Axes], lead: Lead) -> str:
    metric = lead.measure
    compared_pairs = [
        (pair, compared)
        for pair in pairs_of_one_kind(study)
        if (compared := pair.compared(metric.name)) is not None
    ]
    if not compared_pairs:
        return ""
    differing = [item for item in compared_pairs if item[1].sign]
    if not differing:
        pairs_ = plural(len(compared_pairs), "pair")
        mark = mark_of(compared_pairs[0][0].base.time_source)
        return f"No difference in {_noun(metric)} beyond the noise{mark}: {pairs_}."
    first = axes[0] if axes else Axes()
    if answer := _answer(study, compared_pairs, metric, first):
        return answer
    keys = [key for key in (first.x, first.colour) if key]
    along = next((items for key in keys if (items := _along(differing, key))), differing)
    pair, largest = max(along, key=lambda item: _distance(item[1]))
    return _sentence(pair, largest, metric, first)


def _distance(one: Comparison) -> tuple[float, float]:
    """Sort key for the size of a difference: from or to 0, it is larger than any multiple."""
    log = abs(math.log(one.ratio.value)) if one.ratio else math.inf
    return log, abs(one.apart.value)


def _answer(study: StudyData, found: Sequence[Found], metric: Measure, axes: Axes) -> str:
    """Mean gain of the best value of the compared key over the base.

    Of what the first figure shows, if any of that is compared.
    """
    question = study.question
    items = _along([*found], question.key) if question else []
    items = [item for item in items if study.matches(item[0].other, axes)] or items
    if not items:
        return ""
    best = _best(items, metric)
    (pair, comparison), *others = best
    mean, comparisons = _mean(best), [compared for _, compared in best]
    if not any(compared.sign for compared in comparisons):
        interval = interval_words(mean) if mean else ""
        return f"{pair.change}: no difference in {_noun(metric)} beyond the noise{interval}."
    if not others:
        return _sentence(pair, comparison, metric, axes)
    counts = f"{plural(len(best), 'pair')} ({count_words(comparisons)})"
    if mean is None:
        apart = mean_apart(comparisons)
        words = f"{difference_text(apart, metric)} {metric.display_unit}"
        return f"{pair.change}: {_noun(metric)} {words}, the mean difference of {counts}."
    panels = _panels(best, axes.facet)
    if not panels and len(works := dict.fromkeys(_work(pair) for pair, _ in items)) > 1:
        groups = [[item for item in items if _work(item[0]) == work] for work in works]
        return f"{'; '.join(_of_work(group, metric) for group in groups)}."
    if not panels:
        return f"{_what(pair, mean, metric)}, the geometric mean of {counts}."
    (first, mean), *rest = panels
    more = [f"{half_words(ratio, '')} ({words})" for words, ratio in rest]
    return f"{', '.join([f'{_what(pair, mean, metric)} ({first})', *more])}."


def _best(found: Sequence[Found], metric: Measure) -> list[Found]:
    """The pairs of the change that gains most on average."""
    changes = dict.fromkeys(pair.change for pair, _ in found)
    groups = [[item for item in found if item[0].change == change] for change in changes]
    return max(groups, key=lambda group: (metric.better or 1) * _gain(group, groups))


def _gain(group: Sequence[Found], groups: Sequence[Sequence[Found]]) -> float:
    """Sort key by which the best of `groups` is chosen: ratios, or differences if a ratio lacks."""
    if all(compared.ratio for pairs_ in groups for _, compared in pairs_):
        return math.log(_known_mean(group).value)
    return mean_apart([compared for _, compared in group]).value


def _work(pair: Pair) -> Any:
    return pair.context.get(WORK)


def _of_work(found: Sequence[Found], metric: Measure) -> str:
    """The best answer for a single workload; there is no mean over different work.

    Places in which a model has nothing overflow do not count, if there are others.
    """
    scarce = [item for item in found if not is_ample((item[0].base, item[0].other))]
    best = _best(scarce or found, metric)
    pair, mean = best[0][0], _mean(best)
    where = in_words({WORK: _work(pair)})
    lacking = f", {WITHOUT}" if any(lacks_submission(pair.other) for pair, _ in best) else ""
    counts = f"({plural(len(best), 'pair')}{lacking})"
    if mean is None:
        apart = difference_text(mean_apart([compared for _, compared in best]), metric)
        return f"{where}: {pair.change}: {_noun(metric)} {apart} {metric.display_unit} {counts}"
    if abs(mean.value - 1) <= EVEN_SHARE or not any(item[1].sign for item in best):
        words = f"no difference in {_noun(metric)} beyond {percent(EVEN_SHARE)} and the noise"
        return f"{where}: {pair.change}: {words}"
    return f"{where}: {_what(pair, mean, metric)} {counts}"


def _panels(group: Sequence[Found], facet: str | None) -> list[tuple[str, Interval]]:
    """The mean of each panel of the chart with the panel's words.

    None where there is one panel or too many for a sentence, or where the panels differ in whether
    there is a difference and in which direction.
    """
    if not facet:
        return []
    values = dict.fromkeys(pair.context.get(facet) for pair, _ in group)
    means = [
        (
            in_words({facet: value}),
            _known_mean([item for item in group if item[0].context.get(facet) == value]),
        )
        for value in values
    ]
    sides = {mean.side_of(1) for _, mean in means}
    alike = len(sides) == 1 and 0 not in sides
    return means if alike and 1 < len(means) <= MOST_PANELS else []


def _mean(group: Sequence[Found]) -> Interval | None:
    """The mean ratio of several pairs, or the ratio of a single pair; None without a ratio."""
    return mean_of([compared for _, compared in group])


def _known_mean(group: Sequence[Found]) -> Interval:
    return mean_ratio([compared.ratio for _, compared in group if compared.ratio])


def _along(found: list[Found], key: str) -> list[Found]:
    """The pairs that differ in a key, in a key that varies with it, or in the cache's size."""
    return [item for item in found if is_of_key(item[0].key, key)]


def _sentence(pair: Pair, one: Comparison, metric: Measure, axes: Axes) -> str:
    """'Swap instead of recompute: 12 % (± 3) lower makespan (zipf).'"""
    keys = [key for key in pair.context if key not in MINOR and (not axes.x or key in axes.keys)]
    where = in_words({key: pair.context[key] for key in keys})
    if one.ratio:
        words = _what(pair, one.ratio, metric)
    else:
        numbers = (run.number(metric.name) for run in (pair.base, pair.other))
        values = " → ".join(estimate_text(number, metric)[0] for number in numbers)
        words = f"{pair.change}: {_noun(metric)} {values} {metric.display_unit}"
    return f"{words}{f' ({where})' if where else ''}."


def _what(pair: Pair, ratio: Interval, metric: Measure) -> str:
    return f"{pair.change}: {half_words(ratio)} {_noun(metric)}"


def _noun(metric: Measure) -> str:
    """'net resume overhead' of the heading 'Resume overhead, net'."""
    name, _, kind = metric.heading.partition(", ")
    return f"{kind} {name if name[:2].isupper() else name.lower()}".strip()


def _extremes(study: StudyData, metric: Measure) -> str:
    """The least and the greatest value of a metric without a direction, or its only value.

    Nothing of several that cannot be compared.
    """
    runs = [run for run in study.counted if not math.isnan(run.number(metric.name).value)]
    if len(runs) > 1 and metric.better:
        return ""
    ordered = sorted(runs, key=lambda run: run.number(metric.name).value)
    values = [_value(run.number(metric.name), metric) for run in ordered]
    if not values:
        return ""
    least, most, mark = ordered[0], ordered[-1], mark_of(ordered[0].time_source)
    if len(values) < 2:
        return f"{metric.heading}: {values[0]}{mark}."
    span = f"{values[0]} ({least.label}) to {values[-1]} ({most.label})"
    return f"{metric.heading}: {span}{mark}."


def _value(number: Interval, metric: Measure) -> str:
    """A value with its interval, unless it is a count, and its unit, unless it is a ratio."""
    value, half = estimate_text(number, metric)
    unit = "" if metric.display_unit == "ratio" else metric.display_unit
    return " ".join(filter(None, [value, half if number.half else "", unit]))


@dataclass(frozen=True)
class Finding:
    """A metric of one change: of a pair, or of several and their mean.

    That is the geometric mean of ratios or, where one of several is none above 0, the mean of the
    differences in the metric's unit. `where` are the settings that both of a pair have, in words,
    or how many of several pairs differ in which direction. A ratio within `control` of 1, the
    negative control, is no verdict.
    """

    change: str
    where: str
    metric: Measure
    compared: tuple[Comparison, ...]
    control: float = 0.0

    @cached_property
    def ratio(self) -> Interval | None:
        """The ratio, or the geometric mean of several; None without a ratio."""
        return mean_of(self.compared)

    @cached_property
    def apart(self) -> Interval:
        """The difference, or the mean of the differences."""
        return mean_apart(self.compared)

    @property
    def differs(self) -> bool:
        """Whether any of its pairs differs beyond the noise."""
        return any(comparison.sign for comparison in self.compared)

    @property
    def verdict(self) -> str:
        """'better' or 'worse'; empty if the interval allows either, or neither is better.

        Empty, too, of what another seed may change.
        """
        if self.ratio and abs(self.ratio.value - 1) <= self.control:
            return ""
        sign = Comparison(self.ratio, self.apart).sign
        return {1: "better", -1: "worse"}.get(sign * self.metric.better, "")

    @property
    def difference(self) -> str:
        """The ratio as a difference from the base, '-12 %', or the difference: '-9.5 a repeat'."""
        if self.ratio:
            return signed_percent(self.ratio.value)
        return f"{difference_text(self.apart, self.metric)}{NBSP}{self.metric.display_unit}"

    @property
    def interval(self) -> str:
        """The interval of the difference: '-15 % to -9 %'; empty for numbers without noise."""
        change = self.ratio or self.apart
        if not change.low < change.high:
            return ""
        if self.ratio:
            return f"{signed_percent(change.low)} to {signed_percent(change.high)}"
        ends = (replace(self.apart, value=end) for end in (change.low, change.high))
        return " to ".join(difference_text(end, self.metric) for end in ends)


@dataclass(frozen=True)
class Findings:
    """Findings of a study.

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
    controls = [_controls(group, metrics) for group in groups]
    controlled = [*zip(groups, controls, strict=True)]
    rows = [row for group, control in controlled for row in _rows(group, metrics, control)]
    several = ((pair, control) for group, control in controlled if len(group) > 1 for pair in group)
    candidates = (row for pair, control in several for row in _rows([pair], metrics, control))
    single = [*islice(candidates, MOST_PAIRS + 1)]
    caveats = [
        *_lacking(groups),
        *_apart(rows),
        *([] if rows else _nothing_compared(study, bool(groups))),
    ]
    return Findings(
        tuple(row for row in rows if row.differs),
        tuple(row for row in rows if not row.differs),
        tuple(single[:MOST_PAIRS]),
        len(single) > MOST_PAIRS,
        (*same_tokens(study), *_events(study)),
        tuple(caveats),
    )


def by_change(rows: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Rows that follow one another and are of the same change, together."""
    return [(change, list(same)) for change, same in groupby(rows, lambda row: row.change)]


def compared_metrics(study: StudyData) -> list[Measure]:
    """Metrics with a direction: those the figures show first, then the first columns."""
    leading = [measures()[name] for _, lead in leads(study) for name in lead.panel]
    columns = [measure for measure in main_columns(study) if measure.first]
    return [measure for measure in dict.fromkeys([*leading, *columns]) if measure.better]


def _controls(group: Sequence[Pair], metrics: Sequence[Measure]) -> dict[str, float]:
    """Largest change of each metric by another seed, in a group of pairs."""
    return {metric.name: error_of_one_draw(group, metric.name) for metric in metrics}


def _rows(
    group: Sequence[Pair], metrics: Sequence[Measure], controls: Mapping[str, float]
) -> Iterator[Finding]:
    """A row for each metric and workload; `controls` tell what another seed changes."""
    for metric in metrics:
        works: dict[Any, list[Found]] = defaultdict(list)
        for pair in group:
            if compared := pair.compared(metric.name):
                works[_work(pair)].append((pair, compared))
        for work, pairs_ in works.items():
            name = in_words({WORK: work}) if len(works) > 1 else ""
            if row := _row(pairs_, metric, controls[metric.name], name):
                yield row


def _row(found: Sequence[Found], metric: Measure, control: float, work: str) -> Finding | None:
    """The row of a workload, named if there are several; None if nothing is modeled.

    Times in which only what the model lacks would differ are left out.
    """
    lacks = is_of_time(metric.unit) and any(lacks_submission(pair.other) for pair, _ in found)
    items = [item for item in found if not (lacks and is_ample((item[0].base, item[0].other)))]
    if not items:
        return None
    pair, compared = items[0][0], tuple(item[1] for item in items)
    mean = "" if mean_of(compared) else "; mean difference"
    several = f"{plural(len(items), 'pair')}: {count_words(compared)}{mean}"
    words = [
        *([work] if work and len(items) > 1 else []),
        pair.where if len(items) == 1 else several,
        *([WITHOUT] if lacks else []),
        *(
            [f"{plural(len(found) - len(items), 'pair')} not modeled"]
            if len(items) < len(found)
            else []
        ),
    ]
    return Finding(pair.change, "; ".join(filter(None, words)), metric, compared, control)


def _events(study: StudyData) -> list[str]:
    """How many events the traced experiments recorded; those of imports are not counted."""
    traced = [tracing for run in study.complete if (tracing := run.record.tracing)]
    counted = [(t.events, t.dropped_events) for t in traced if t.dropped_events is not None]
    if not counted:
        return []
    events, dropped = map(sum, zip(*counted, strict=True))
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


def _lacking(groups: Sequence[Sequence[Pair]]) -> list[str]:
    """Sentences on overflow policies whose times lack what the model does not contain."""
    pairs_ = (pair for group in groups for pair in group if pair.key == OVERFLOW)
    names = dict.fromkeys(pair.other_name for pair in pairs_ if lacks_submission(pair.other))
    if not names:
        return []
    sentences = [f"All times of {join_words([*names], 'and')} are {WITHOUT}."]
    if len({pair.other.seed for group in groups for pair in group}) < 2:
        sentences.append("Requests were drawn once: another seed may move a difference by points.")
    return sentences


def _apart(found: Sequence[Finding]) -> list[str]:
    ratios = [pair.ratio for row in found for pair in row.compared if pair.ratio]
    if not any(ratio.how == INDEPENDENT for ratio in ratios):
        return []
    which = "" if all(ratio.how == INDEPENDENT for ratio in ratios) else "Some experiments were "
    return [
        f"{which or 'The experiments were '}not measured in the same rounds: their intervals do "
        "not have in them what the machine did between the experiments."
    ]
