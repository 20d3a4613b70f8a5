"""What was found about the cost of preemptions, by the net measure and by the paper's."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kvscope.report.comparisons import Pair, capitalised, several
from kvscope.report.data import Run
from kvscope.report.settings import in_words
from kvscope.report.words import (
    OVERHEAD_CONTROL,
    OVERHEAD_NET,
    OVERHEAD_PAPER,
    OVERHEAD_UNCERTAINTY,
    PREEMPTIONS,
    joined,
    key_title,
    number_text,
    plural,
    setting_words,
    value_words,
)

MEASURES = (("net resume overhead", OVERHEAD_NET), ("the paper's measure", OVERHEAD_PAPER))


def costs(pair: Pair) -> bool:
    """Whether there is a cost to compare: both experiments preempt and know what it took."""
    return all(
        run.number(PREEMPTIONS.metric).value > 0 and run.number(OVERHEAD_NET.metric).has_interval
        for run in (pair.base, pair.other)
    )


def of_one(pair: Pair) -> str:
    """'net resume overhead 41 % lower (…), by the paper's measure 12 % lower'."""
    net, paper = (pair.compared(shown.metric) for _, shown in MEASURES)
    if net is None:
        return "net resume overhead not compared"
    told = "no difference in net resume overhead beyond the noise"
    if net.sign:
        told = f"net resume overhead {net.change} ({net.range})"
    if paper is None:
        return told
    other = paper.change if paper.sign else "no difference"
    disagree = net.sign * paper.sign < 0
    return f"{told}, by the paper's measure {other}{', which disagrees' if disagree else ''}"


def of_many(group: Sequence[Pair]) -> str:
    """How many of the pairs of one change cost less or more, by each measure."""
    known = [pair for pair in group if costs(pair)]
    net, paper = ([p.compared(shown.metric) for p in known] for _, shown in MEASURES)
    opposed = sum(1 for a, b in zip(net, paper, strict=True) if a and b and a.sign * b.sign < 0)
    disagree = f"; the two measures disagree in {opposed}" if opposed else ""
    return f"net resume overhead {several(net)}; by the paper's measure {several(paper)}{disagree}"


def control(runs: Sequence[Run]) -> list[str]:
    """What the net measure gives where nothing resumes, in all experiments that it judges."""
    known = [run for run in runs if run.number(OVERHEAD_UNCERTAINTY.metric).value > 0]
    if not known:
        return []
    scale, unit = OVERHEAD_CONTROL.scale, OVERHEAD_CONTROL.unit
    found = [run.number(OVERHEAD_CONTROL.metric) for run in known]
    bounds = [run.number(OVERHEAD_UNCERTAINTY.metric).value for run in known]
    ends = min(n.value for n in found), max(n.value for n in found), min(bounds), max(bounds)
    low, high, least, most = (number_text(end * scale) for end in ends)
    holding = sum(1 for number in found if number.low <= 0 <= number.high)
    return [
        f"Negative control of the net resume overhead, in {plural(len(known), 'experiment')}: in "
        f"the place of passes that resume, others come to {low} to {high} {unit} a repeat, and 0 "
        f"is in the interval of {holding}; the net cost is uncertain by {least} to {most} {unit}."
    ]


def crossings(group: Sequence[Pair]) -> Iterator[str]:
    """Where along a number one side of a change stops being cheaper and the other one starts."""
    lines: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in filter(costs, group):
        for key, value in pair.context.items():
            if isinstance(value, int | float):
                others = {k: v for k, v in pair.context.items() if k != key}
                lines[key, in_words(others)].append(pair)
    for (key, rest), line in lines.items():
        for measure, shown in MEASURES:
            signs = [
                (pair.context[key], found.sign)
                for pair in sorted(line, key=lambda pair: pair.context[key])
                if (found := pair.compared(shown.metric)) is not None
            ]
            if {1, -1} <= {sign for _, sign in signs}:
                where = _crossing(signs, key, line[0])
                yield capitalised(f"by {measure}, {where}{f' ({rest})' if rest else ''}.")


def _crossing(signs: list[tuple[Any, int]], key: str, pair: Pair) -> str:
    """'recompute is cheaper up to 512 prompt tokens, swap from 2048 on; …'."""
    told = [(value, sign) for value, sign in signs if sign]
    first, last = told[0][1], told[-1][1]
    base, other = (setting_words(pair.key, name) for name in (pair.base_name, pair.other_name))
    names = {1: base, -1: other}  # a higher cost: the base is cheaper
    turn = next(i for i, (_, sign) in enumerate(told) if sign != first)
    if any(sign != last for _, sign in told[turn:]):
        cheaper = [
            f"{names[sign]} at {joined([value_words(v) for v, s in told if s == sign])}"
            for sign in (first, -first)
        ]
        return f"what is cheaper changes back and forth along {key_title(key)}: {joined(cheaper)}"
    before, after = told[turn - 1][0], told[turn][0]
    between = any(before < value < after for value, _ in signs)
    return (
        f"{names[first]} is cheaper up to {setting_words(key, before)}, "
        f"{names[last]} from {value_words(after)} on"
        f"{'; between them the intervals overlap' if between else ''}"
    )
