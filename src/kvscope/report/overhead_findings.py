"""Findings about the cost of preemptions, by the net measure and by the paper's."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kvscope.analyse.study_metrics import MEASURES as METRICS
from kvscope.report.comparisons import (
    Pair,
    capitalize_first,
    change_words,
    compared_words,
    interval_words,
    summarize_ratios,
)
from kvscope.report.data import Run
from kvscope.report.settings import in_words
from kvscope.report.words import (
    join_words,
    key_title,
    number_text,
    plural,
    setting_words,
    value_words,
)

NET = "resume_overhead_net_s"
MEASURES = (
    ("net resume overhead", NET),
    ("the paper's measure", "resume_overhead_as_published_s"),
)


def has_overhead(pair: Pair) -> bool:
    """Whether both experiments preempt and have a net resume overhead with an interval."""
    return all(
        run.number("preemptions").value > 0 and run.number(NET).has_interval
        for run in (pair.base, pair.other)
    )


def pair_overhead(pair: Pair) -> str:
    """'41 % lower net resume overhead (…), by the paper's measure 12 % lower (…)'."""
    net, paper = (pair.compared(name) for _, name in MEASURES)
    sentence = compared_words(net, "net resume overhead")
    if net is None or paper is None:
        return sentence
    other = f"{change_words(paper) if paper.sign else 'no difference'}{interval_words(paper)}"
    disagree = net.sign * paper.sign < 0
    return f"{sentence}, by the paper's measure {other}{', which disagrees' if disagree else ''}"


def group_overhead(group: Sequence[Pair]) -> str:
    """How many of the pairs of one change cost less or more, by each measure."""
    known = [pair for pair in group if has_overhead(pair)]
    net, paper = ([p.compared(name) for p in known] for _, name in MEASURES)
    opposed = sum(1 for a, b in zip(net, paper, strict=True) if a and b and a.sign * b.sign < 0)
    disagree = f"; the two measures disagree in {opposed}" if opposed else ""
    by_net, by_paper = summarize_ratios(net), summarize_ratios(paper)
    return f"net resume overhead {by_net}; by the paper's measure {by_paper}{disagree}"


def control(runs: Sequence[Run]) -> list[str]:
    """What the net measure gives for passes that resume no request, over all experiments."""
    known = [run for run in runs if run.number("resume_overhead_net_uncertainty_s").value > 0]
    if not known:
        return []
    shown = METRICS["resume_overhead_net_control_s"]
    scale, unit = shown.scale, shown.display_unit
    found = [run.number("resume_overhead_net_control_s") for run in known]
    bounds = [run.number("resume_overhead_net_uncertainty_s").value for run in known]
    ends = min(n.value for n in found), max(n.value for n in found), min(bounds), max(bounds)
    low, high, least, most = (number_text(end * scale) for end in ends)
    holding = sum(1 for number in found if number.low <= 0 <= number.high)
    return [
        f"Negative control in {plural(len(known), 'experiment')}: passes that resume no request "
        f"have a net resume overhead of {low} to {high} {unit} a repeat; the interval of {holding} "
        f"contains 0. The net overhead is uncertain by {least} to {most} {unit}."
    ]


def crossings(group: Sequence[Pair]) -> Iterator[str]:
    """At which values of a number the other side of a change becomes the cheaper one."""
    lines: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in filter(has_overhead, group):
        for key, value in pair.context.items():
            if isinstance(value, int | float):
                others = {k: v for k, v in pair.context.items() if k != key}
                lines[key, in_words(others)].append(pair)
    for (key, rest), line in lines.items():
        for measure, name in MEASURES:
            signs = [
                (pair.context[key], found.sign)
                for pair in sorted(line, key=lambda pair: pair.context[key])
                if (found := pair.compared(name)) is not None
            ]
            if {1, -1} <= {sign for _, sign in signs}:
                where = _crossing(signs, key, line[0])
                yield capitalize_first(f"by {measure}, {where}{f' ({rest})' if rest else ''}.")


def _crossing(signs: list[tuple[Any, int]], key: str, pair: Pair) -> str:
    """'recompute is cheaper up to 512 prompt tokens, swap from 2048 on; …'."""
    known = [(value, sign) for value, sign in signs if sign]
    first, last = known[0][1], known[-1][1]
    base, other = (setting_words(pair.key, name) for name in (pair.base_name, pair.other_name))
    names = {1: base, -1: other}  # a higher cost: the base is cheaper
    turn = next(i for i, (_, sign) in enumerate(known) if sign != first)
    if any(sign != last for _, sign in known[turn:]):
        cheaper = [
            f"{names[sign]} at {join_words([value_words(v) for v, s in known if s == sign])}"
            for sign in (first, -first)
        ]
        return (
            f"what is cheaper changes back and forth along {key_title(key)}: {join_words(cheaper)}"
        )
    before, after = known[turn - 1][0], known[turn][0]
    between = any(before < value < after for value, _ in signs)
    return (
        f"{names[first]} is cheaper up to {setting_words(key, before)}, "
        f"{names[last]} from {value_words(after)} on"
        f"{'; between them neither is beyond the noise' if between else ''}"
    )
