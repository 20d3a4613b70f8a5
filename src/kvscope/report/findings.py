"""What was found, in sentences, claimed only where 95 % confidence intervals are disjoint."""

from collections.abc import Sequence

from kvscope.report import overhead_findings as overhead
from kvscope.report.access_findings import events_recorded, idle_blocks
from kvscope.report.comparisons import Pair, context_of, grouped, pairs, several
from kvscope.report.data import StudyData
from kvscope.report.proofs import same_tokens
from kvscope.report.words import (
    OVERHEAD_NET,
    PREEMPTIONS,
    THROUGHPUT,
    number_text,
    plural,
    reason_in_words,
)

SENTENCES = 12
# Up to so many pairs of one change get a sentence each; more are summed up in one.
SINGLE_PAIRS = 4


def findings(study: StudyData) -> list[str]:
    """A few sentences: where policies overtake each other, comparisons, and caveats last."""
    groups = grouped(pairs(study))
    found = [(True, sentence) for group in groups for sentence in overhead.crossings(group)]
    for group in groups:
        if len(group) > SINGLE_PAIRS:
            found.append((any(map(_differ, group)), _many(group)))
        else:
            found += [(_differ(pair), _one(pair)) for pair in group]
    left = len(found) - SENTENCES
    if left > 0:  # differences are what is listed
        found = sorted(found, key=lambda one: not one[0])[:SENTENCES]
    sentences = [sentence for _, sentence in found]
    sentences += [f"{plural(left, 'more comparison')} not listed here."] if left > 0 else []
    traced = [*events_recorded(study), *idle_blocks(study)]
    held = [*overhead.control(study.complete), *same_tokens(study)]
    return [*(sentences or _nothing_compared(study)), *held, *traced, *_caveats(study)]


def _one(pair: Pair) -> str:
    where = context_of(pair)
    parts = [overhead.of_one(pair)] if overhead.costs(pair) else []
    parts += [_throughput(pair), *_preemptions(pair)]
    return f"{pair.change}{f' ({where})' if where else ''}: {'; '.join(parts)}."


def _many(group: Sequence[Pair]) -> str:
    parts = [overhead.of_many(group)] if any(map(overhead.costs, group)) else []
    ratios = [pair.compared(THROUGHPUT.metric) for pair in group]
    parts.append(several(ratios, "throughput"))
    return f"{group[0].change}, {plural(len(group), 'pair')}: {'; '.join(parts)}."


def _differ(pair: Pair) -> bool:
    """Whether anything that is told of the pair is a difference beyond the noise."""
    metrics = [THROUGHPUT, OVERHEAD_NET] if overhead.costs(pair) else [THROUGHPUT]
    ratios = [pair.compared(shown.metric) for shown in metrics]
    return any(one is not None and one.sign for one in ratios)


def _throughput(pair: Pair) -> str:
    compared = pair.compared(THROUGHPUT.metric)
    if compared is None:
        return "throughput not compared, an interval is missing"
    if not compared.sign:
        return "no difference in throughput beyond the noise"
    return f"{compared.change} throughput ({compared.range})"


def _preemptions(pair: Pair) -> list[str]:
    base, other = (run.number(PREEMPTIONS.metric).value for run in (pair.base, pair.other))
    if not base > 0 and not other > 0:
        return []
    instead = "" if base == other else f" instead of {number_text(base)}"
    return [f"{number_text(other)} preemption{'' if other == 1 else 's'} a repeat{instead}"]


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
