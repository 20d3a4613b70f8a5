"""The overflow policy with the highest throughput in each cell of a map of two keys."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from kvscope.base.quantities import join_words
from kvscope.base.statistics import Interval
from kvscope.metrics.measure import measures
from kvscope.plan.figures import Axes
from kvscope.plan.traits import setting_words
from kvscope.report import theme
from kvscope.report.axes import PlacesOfKey, rows, x_words
from kvscope.report.comparisons import error_of_one_draw, pairs_of_one_kind, ratio_of_seeds
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import (
    Drawing,
    Figure,
    Lead,
    Spec,
    View,
    colour_channel,
    grid,
    heading,
    plot_width,
    text,
)
from kvscope.report.not_modeled import WITHOUT, is_ample, lacks_submission
from kvscope.report.words import percent, signed_percent

POLICY = "overflow"
THROUGHPUT = "throughput_tokens_per_s"
TIE, AMPLE = "none is better", "not modeled"
MARK = "*"  # of a number that lacks the host's time
CELL_PX, LABEL_PX, COLUMNS = 26, 130, 2
LEADING = 2  # axes whose maps open a page


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A map for each facet: x by colour's key, in each cell the best policy and its margin."""
    if not axes:
        return None
    counted = {run.id for run in study.counted if _valid(run)}
    places = [*rows(study, lambda run: run.id in counted, axes)]
    compared = [pair for pair in pairs_of_one_kind(study) if pair.key == POLICY]
    one_draw = error_of_one_draw(compared, THROUGHPUT)
    maps = [
        (row, facet, table)
        for row in places
        for facet in row.facets
        if len(table := pd.DataFrame(_cells(study, row, facet, one_draw)))
    ]
    if not maps:
        return None
    winners = sorted({name for *_, table in maps for name in table["winner"]} - {TIE, AMPLE})
    tables = {f"map{number}": table for number, (*_, table) in enumerate(maps)}
    cells = [
        _map(name, table, facet, winners, row.title)
        for name, (row, facet, table) in zip(tables, maps, strict=True)
    ]
    remarks = tuple(_remarks(study, one_draw))
    return Drawing((View(grid(cells, COLUMNS), tables, remarks=remarks),), label_px=LABEL_PX)


def _remarks(study: StudyData, one_draw: float) -> Iterator[str]:
    """Remarks on times that the model lacks, and on the error of one draw of requests."""
    if any(map(lacks_submission, study.counted)):
        yield f"{MARK} {WITHOUT}"
        yield f"{AMPLE}: nothing overflows, only this would differ"
    if one_draw:
        yield f"one seed: no colour within {percent(one_draw)}, the error of a draw"


def draw_first(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """The maps of the first axes, with which a page opens."""
    return draw(study, axes[:LEADING])


def _valid(run: ReportedRun) -> bool:
    return run.valid and run.number(THROUGHPUT).value > 0


Rivals = dict[str, dict[int, ReportedRun]]
"""The runs of a cell by policy and seed."""


def _cells(
    study: StudyData, row: PlacesOfKey, facet: str, one_draw: float
) -> Iterator[dict[str, Any]]:
    """The cells of a facet in which several policies compete with the base."""
    cells: dict[tuple[Any, str], Rivals] = defaultdict(lambda: defaultdict(dict))
    for place in row.of_facet(facet):
        by_seed = cells[place.x, place.colour][_policy(place.run)]
        seed = place.run.seed
        by_seed[seed] = max(by_seed.get(seed, place.run), place.run, key=_throughput)
    base = _base(study)
    for (x, colour), rivals in cells.items():
        if len(rivals) < 2 or base not in rivals:
            continue
        first, *others = sorted(rivals, key=lambda name: -_mean(rivals[name]))
        ratios = {name: _ratio(study, rivals, (first, name), one_draw) for name in rivals}
        even = [name for name in others if ratios[name].side_of(1) <= 0]
        gain = ratios[base]
        ample = is_ample(run for by_seed in rivals.values() for run in by_seed.values())
        clear = not ample and base not in (first, *even)
        lacking = any(lacks_submission(run) for run in rivals[first].values())
        yield {
            "x": x_words(x),
            "order": row.values.index(x),
            "y": colour,
            "winner": join_words([first, *even], "or") if clear else AMPLE if ample else TIE,
            "margin": _margin(gain, lacking) if clear else AMPLE if ample else "",
            "gain": f"{signed_percent(gain.value)} ({signed_percent(gain.low)} to "
            f"{signed_percent(gain.high)}) with {first} instead of {base}"
            + (f", {WITHOUT}" if lacking else ""),
            "all": ", ".join(f"{name} {_mean(rivals[name]):,.0f}" for name in (first, *others)),
        }


def _margin(gain: Interval, lacking: bool) -> str:
    return f"+{percent(gain.value - 1)}{MARK if lacking else ''}"


def _base(study: StudyData) -> str:
    """Base of the comparison: as the study asks, else its first policy."""
    question = study.question
    if question and question.key == POLICY:
        return setting_words(POLICY, question.base)
    return _policy(study.complete[0])


def _policy(run: ReportedRun) -> str:
    return setting_words(POLICY, str(run.flat.get(POLICY)))


def _throughput(run: ReportedRun) -> float:
    return run.number(THROUGHPUT).value


def _ratio(study: StudyData, rivals: Rivals, names: tuple[str, str], one_draw: float) -> Interval:
    first, second = (rivals[name] for name in names)
    return ratio_of_seeds(study, THROUGHPUT, first, second, one_draw)


def _mean(by_seed: Mapping[int, ReportedRun]) -> float:
    return fmean(map(_throughput, by_seed.values()))


def _map(name: str, table: pd.DataFrame, title: str, winners: Sequence[str], x_title: str) -> Spec:
    ticks = table.sort_values("order")["x"].drop_duplicates().tolist()
    lines = table["y"].drop_duplicates().tolist()
    place = {
        "x": text("x", sort=ticks, title=x_title, axis={"labelAngle": 0, "grid": False}),
        "y": text("y", sort=lines, title=None, axis={"labelLimit": LABEL_PX}),
    }
    grey = f"datum.winner === '{TIE}' || datum.winner === '{AMPLE}'"
    even = {"test": grey, "value": theme.GREY}
    colour = {"color": colour_channel(winners or [TIE], "winner") | {"condition": even}}
    shown = measures()[THROUGHPUT]
    tooltip = [text("gain", title=shown.heading), text("all", title=shown.display_unit)]
    return {
        "data": {"name": name},
        "width": plot_width(COLUMNS, LABEL_PX),
        "height": CELL_PX * len(lines),
        "layer": [
            {
                "mark": {"type": "rect", "cornerRadius": 2, "opacity": 0.5},
                "encoding": place | colour | {"tooltip": tooltip},
            },
            {
                "mark": {"type": "text", "fontSize": 10},
                "encoding": place | {"text": text("margin"), "tooltip": tooltip},
            },
        ],
        **heading(title),
    }


FIGURE = Figure(
    "Who wins where",
    "The overflow policies with the highest throughput, and by how much it is above that of the "
    "policy that the study compares with. Of the values of other keys the best one counts. Of "
    "several seeds the 95 % interval is that of pairs of one seed; what is within 1 % is as good, "
    "and with one seed what is within the error of one draw. Grey: none is better.",
    draw,
    order=5,
    lead=Lead(THROUGHPUT, draw_first, (THROUGHPUT,)),
    axes="`x`, `colour` (the other axis of the map), `facet` and `where` of each row of maps",
)
