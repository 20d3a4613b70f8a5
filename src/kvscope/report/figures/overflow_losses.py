"""Places in which an overflow policy is slower than the study's base, and why."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from textwrap import wrap
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.plan.figures import Axes
from kvscope.plan.traits import in_words
from kvscope.report import theme
from kvscope.report.comparisons import (
    Pair,
    error_of_one_draw,
    pairs_of_one_kind,
    ratio_of_seeds,
)
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import (
    LETTER,
    PAPER,
    Drawing,
    Figure,
    Spec,
    View,
    colours,
    number,
    text,
)
from kvscope.report.not_modeled import WITHOUT, lacks_submission
from kvscope.report.words import signed_percent

POLICY, SEED = "overflow", "seed"
NOT_SAID = (SEED, "device.constants.pinned_out_bytes_per_s")  # it goes with the other direction's
THROUGHPUT, MAKESPAN = "throughput_tokens_per_s", "makespan_s"
IDLE = "nothing runs, while loads are awaited"
MORE = "more passes, with fewer requests in each"
LONGER = "passes that take longer"
CAUSES = (IDLE, MORE, LONGER)
HUES = (theme.PALETTE[3], theme.PALETTE[5], theme.PALETTE[4])
MOST = 24  # rows, those that lose most
LABEL_LETTERS, LINE_PX = 44, 13
LABEL_PX = round(LETTER * LABEL_LETTERS)


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A bar for each place with less throughput than the base: the additional time, by cause."""
    lost = sorted(_losses(study), key=lambda loss: loss["ratio"])
    if not lost:
        return None
    shown = lost[:MOST]
    parts = pd.DataFrame(
        {"where": loss["where"], "cause": cause, "share": share, "ratio": loss["words"]}
        for loss in shown
        for cause, share in loss["shares"].items()
    )
    chart = _chart([loss["where"] for loss in shown])
    remarks = (*_sentences(study, lost), *_left_out(len(lost)))
    return Drawing((View(chart, {"losses": parts}, remarks=remarks),), label_px=LABEL_PX)


def _left_out(count: int) -> list[str]:
    return [f"The {MOST} largest of {count} are shown."] if count > MOST else []


def _losses(study: StudyData) -> Iterator[dict[str, Any]]:
    """The places in which a policy has clearly less throughput than the base, over seeds."""
    by_place: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    compared = [pair for pair in pairs_of_one_kind(study) if pair.key == POLICY]
    one_draw = error_of_one_draw(compared, THROUGHPUT)
    for pair in compared:
        context = {k: value for k, value in pair.context.items() if k not in NOT_SAID}
        by_place[pair.other_name, pair.base_name, in_words(context)].append(pair)
    for (name, base, where), same in by_place.items():
        first = {pair.other.seed: pair.other for pair in same}
        second = {pair.base.seed: pair.base for pair in same}
        ratio = ratio_of_seeds(study, THROUGHPUT, first, second, one_draw)
        if ratio.side_of(1) < 0:
            shares = _shares([(pair.other, pair.base) for pair in same])
            yield {
                "name": name,
                "base": base,
                "where": "\n".join(wrap(": ".join(filter(None, [name, where])), LABEL_LETTERS)),
                "ratio": ratio.value,
                "words": f"{signed_percent(ratio.value)} throughput than {base}",
                "shares": shares,
                "cause": max(shares, key=lambda cause: shares[cause]),
            }


def _shares(same: Sequence[tuple[ReportedRun, ReportedRun]]) -> Mapping[str, float]:
    """By cause, the time that a policy takes more as a share of the base's; mean over seeds."""
    parts_of_runs = [_parts(other, base) for other, base in same]
    return {cause: fmean(parts[cause] for parts in parts_of_runs) for cause in CAUSES}


def _parts(other: ReportedRun, base: ReportedRun) -> dict[str, float]:
    """The difference of the makespans in parts, of the base's makespan.

    A makespan is the time in which every request waits for copies, and its passes times the mean
    time of one.
    """
    whole_s = base.number(MAKESPAN).value
    (idle_s, passes, pass_s), (idle_base_s, passes_base, pass_base_s) = map(_times, (other, base))
    return {
        IDLE: (idle_s - idle_base_s) / whole_s,
        MORE: (passes - passes_base) * pass_base_s / whole_s,
        LONGER: passes * (pass_s - pass_base_s) / whole_s,
    }


def _times(run: ReportedRun) -> tuple[float, float, float]:
    """Seconds in which nothing runs; passes; and the rest of the makespan for each of them."""
    idle_s, passes = run.number("offload_idle_s").value, run.number("forward_passes").value
    idle_s = idle_s if idle_s > 0 else 0.0  # NaN where nothing is offloaded
    return idle_s, passes, (run.number(MAKESPAN).value - idle_s) / passes


def _sentences(study: StudyData, lost: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each policy with less throughput: the number of places by cause; then other policies."""
    for name, base in dict.fromkeys((loss["name"], loss["base"]) for loss in lost):
        losses = [loss for loss in lost if (loss["name"], loss["base"]) == (name, base)]
        causes = Counter(loss["cause"] for loss in losses).most_common()
        words = "; ".join(f"{cause} ({count})" for cause, count in causes)
        yield f"{name} has less throughput than {base} in {plural(len(losses), 'place')}: {words}."
    compared = [pair for pair in pairs_of_one_kind(study) if pair.key == POLICY]
    names = dict.fromkeys(pair.other_name for pair in compared)
    if others := [name for name in names if name not in {loss["name"] for loss in lost}]:
        lacking = {pair.other_name for pair in compared if lacks_submission(pair.other)}
        marked = (f"{name} ({WITHOUT})" if name in lacking else name for name in others)
        yield f"No less throughput in the places compared: {', '.join(marked)}."


def _chart(order: Sequence[str]) -> Spec:
    lines = max(label.count("\n") + 1 for label in order)
    axis = {"labelExpr": "split(datum.label, '\\n')", "labelLimit": 0, "labelLineHeight": LINE_PX}
    axis |= {"labelOffset": -LINE_PX * (lines - 1) / 2}
    return {
        "data": {"name": "losses"},
        "width": PAPER - LABEL_PX,
        "height": {"step": LINE_PX * lines + 6},
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "encoding": {
            "y": text("where", sort=list(order), title=None, axis=axis),
            "x": number(
                "share",
                title="time more than the base takes, of the base's makespan",
                axis={"format": "+%", "grid": True},
            ),
            "color": text("cause", scale=colours(CAUSES, HUES), legend={"columns": 1}),
            "tooltip": [
                text("where", title="where"),
                text("ratio", title="in all"),
                text("cause", title="cause"),
                number("share", title="time more", format="+.1%"),
            ],
        },
    }


FIGURE = Figure(
    "Where a policy is slower, and why",
    "Places in which a policy has less throughput than the one that the study compares with, "
    "beyond the noise and 1 %. The time that it takes more, in parts that add up: nothing runs, "
    "because every request waits for copies; there are more passes, since fewer requests run at "
    "once; passes take longer, by copies in them, or since fewer tokens are found and more are "
    "computed. A part to the left is time saved. Mean over seeds.",
    draw,
    order=6,
)
