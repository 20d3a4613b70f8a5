"""Findings in sentences: a difference is one whose 95 % confidence interval is all on one side."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analyse.estimates import INDEPENDENT
from kvscope.report import overhead_findings as overhead
from kvscope.report.access_findings import events_recorded, idle_blocks
from kvscope.report.adaptive_findings import adaptive_regret
from kvscope.report.comparisons import (
    Pair,
    common_context,
    compared_words,
    context_of,
    group_by_change,
    pairs,
    summarize_ratios,
)
from kvscope.report.data import StudyData
from kvscope.report.proofs import same_tokens
from kvscope.report.settings import Settings, in_words
from kvscope.report.words import (
    number_text,
    plural,
    reason_in_words,
)

THROUGHPUT = "throughput_tokens_per_s"
SENTENCES = 8
# Up to so many pairs of one change get a sentence each; more are summed up in one.
SINGLE_PAIRS = 2


@dataclass(frozen=True)
class Findings:
    """What a study shows, in sentences.

    `common` are the settings that all `differences` of single pairs have, in words; `several`
    whether some are of several pairs, which need not have them. `unchanged` are comparisons that
    show no difference, `checks` what was verified beside them, `caveats` what is not compared.
    """

    common: str = ""
    several: bool = False
    differences: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """All of them."""
        return [*self.differences, *self.unchanged, *self.checks, *self.caveats]

    @property
    def scope(self) -> str:
        """Which of the differences have the common settings; nothing without any."""
        but = ", but for those of several pairs," if self.several else ""
        return f"All comparisons below{but} have {self.common}:" if self.common else ""


def findings(study: StudyData) -> Findings:
    """Where policies overtake each other, comparisons, checks and caveats."""
    groups = group_by_change(pairs(study), study.question.key if study.question else "")
    single = [pair for group in groups if len(group) <= SINGLE_PAIRS for pair in group]
    common = common_context([pair for pair in single if _differ(pair)])
    found = [(True, sentence) for group in groups for sentence in overhead.crossings(group)]
    for group in groups:
        if len(group) > SINGLE_PAIRS:
            found.append((any(map(_differ, group)), _many(group)))
        else:
            found += [(_differ(pair), _one(pair, common)) for pair in group]
    differences = [sentence for differs, sentence in found if differs]
    left = len(differences) - SENTENCES
    rest = [f"{plural(left, 'more difference')} not listed here."] if left > 0 else []
    return Findings(
        in_words(common),
        any(len(group) > SINGLE_PAIRS and any(map(_differ, group)) for group in groups),
        (*differences[:SENTENCES], *rest),
        tuple(sentence for differs, sentence in found if not differs),
        (
            *adaptive_regret(study),
            *overhead.control(study.complete),
            *same_tokens(study),
            *events_recorded(study),
            *idle_blocks(study),
        ),
        (
            *([] if found else _nothing_compared(study)),
            *_apart([pair for group in groups for pair in group]),
            *_caveats(study),
        ),
    )


def _one(pair: Pair, common: Settings) -> str:
    where = context_of(pair, common if _differ(pair) else None)
    parts = [overhead.pair_overhead(pair)] if overhead.has_overhead(pair) else []
    parts += [
        compared_words(pair.compared(THROUGHPUT), "throughput"),
        *preemptions_of(pair),
    ]
    return f"{pair.change}{f' ({where})' if where else ''}: {'; '.join(parts)}."


def _many(group: Sequence[Pair]) -> str:
    parts = [overhead.group_overhead(group)] if any(map(overhead.has_overhead, group)) else []
    ratios = [pair.compared(THROUGHPUT) for pair in group]
    parts.append(summarize_ratios(ratios, "throughput"))
    return f"{group[0].change}, {plural(len(group), 'pair')}: {'; '.join(parts)}."


def _differ(pair: Pair) -> bool:
    """Whether the pair differs beyond the noise in a metric of its sentence."""
    metrics = (
        ["throughput_tokens_per_s", "resume_overhead_net_s"]
        if overhead.has_overhead(pair)
        else ["throughput_tokens_per_s"]
    )
    ratios = [pair.compared(name) for name in metrics]
    return any(one is not None and one.sign for one in ratios)


def preemptions_of(pair: Pair) -> list[str]:
    """'11 preemptions a repeat instead of 0', if there are any."""
    base, other = (run.number("preemptions").value for run in (pair.base, pair.other))
    if not base > 0 and not other > 0:
        return []
    instead = "" if base == other else f" instead of {number_text(base)}"
    return [f"{number_text(other)} preemption{'' if other == 1 else 's'} a repeat{instead}"]


def _nothing_compared(study: StudyData) -> list[str]:
    valid = study.count(lambda run: run.valid)
    if len(study.runs) < 2 or not study.keys:
        return []
    if valid < 2:
        return [f"No comparison: {plural(valid, 'experiment')} valid, two are needed."]
    return ["No comparison: no two valid experiments differ in one key alone."]


def _apart(found: Sequence[Pair]) -> list[str]:
    """How many measured pairs no round connects."""
    known = [one for pair in found if (one := pair.compared(THROUGHPUT))]
    apart = [one for one in known if one.how == INDEPENDENT]
    if not apart:
        return []
    which = "" if len(apart) == len(known) else f" of {plural(len(apart), 'comparison')}"
    return [
        f"Not measured in the same rounds: the intervals{which} do not have in them what the "
        "machine did between the experiments."
    ]


def _caveats(study: StudyData) -> list[str]:
    doubtful = [run for run in study.complete if not run.valid]
    if not doubtful:
        return []
    names = list(dict.fromkeys(name for run in doubtful for name in run.reasons))
    why = "; ".join(f"{name}: {reason_in_words(name)}" for name in names)
    is_are, its = ("is", "its") if len(doubtful) == 1 else ("are", "their")
    return [
        f"{plural(len(doubtful), 'experiment')} {is_are} not valid and therefore not compared; "
        f"{its} numbers are shown as measured ({why})."
    ]
