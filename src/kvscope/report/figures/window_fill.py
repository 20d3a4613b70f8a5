"""How batching strategies fill the first forward passes: the tokens of each, and their window."""

from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvscope.report import style
from kvscope.report.arrangements import arrangements
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import Chart, StudyFigure
from kvscope.report.figures.strategies import strategy_key
from kvscope.report.words import setting_words

FIRST = 20
MOST_GROUPS = 6
COLUMNS = 2
MOST_LINES = 60


@dataclass(frozen=True)
class Group:
    """Experiments that differ in their batching strategy alone: what they share, and who is who."""

    name: str
    strategies: tuple[tuple[str, Run], ...]

    @property
    def window(self) -> int | None:
        """The window that all of them have; None if they have several, or one is not known."""
        windows = {window(run) for _, run in self.strategies}
        return windows.pop() if len(windows) == 1 else None


def window(run: Run) -> int | None:
    """The most tokens a pass may have, or the longest request if that is less."""
    engine = run.settings.get("engine", {})
    limits = [engine.get("max_num_batched_tokens"), engine.get("max_model_len")]
    return min(limits) if all(limits) else None


def groups(study: StudyData) -> list[Group]:
    """The experiments that can be compared by their strategy: the series along it, turned."""
    key = strategy_key(study)
    along = next((one for one in arrangements(study) if one.key == key), None)
    if key is None or along is None:
        return []
    return [
        Group(
            series.name or along.fixed,
            tuple(
                (setting_words(key, along.ticks[place]), study.runs[number])
                for place, number in series.points
            ),
        )
        for series in along.series
        if len(series.points) > 1
        and all(study.runs[number].has_passes for _, number in series.points)
    ]


def tokens(run: Run) -> list[int]:
    """Tokens of the first forward passes of the first repeat."""
    return [int(tokens) for tokens in run.steps(run.repeats[0])["scheduled_tokens"].head(FIRST)]


def draw(study: StudyData) -> Figure:
    """An axes a group, a line a strategy; tokens at the left, percent of the window right."""
    shown = groups(study)[:MOST_GROUPS]
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = style.grid_of(rows, columns, 2.8 if len(shown) == 1 else 2.1)
    for number, cell in enumerate(axes):
        if number >= len(shown):
            cell.set_visible(False)
            continue
        _draw_group(cell, shown[number], last=number % columns == columns - 1)
        if number % columns == 0:
            cell.set_ylabel("tokens in the pass")
        if number + columns >= len(shown):
            cell.set_xlabel("forward pass")
    style.legend_below(figure, axes)
    return figure


def _draw_group(axes: Axes, group: Group, last: bool) -> None:
    for number, (strategy, run) in enumerate(group.strategies):
        found, turn = tokens(run), style.cycle(number)
        axes.plot(
            range(1, len(found) + 1),
            found,
            color=style.colour(number),
            linestyle=style.LINES[turn],
            marker=style.MARKERS[turn],
            markersize=3.2,
            label=strategy,
        )
    axes.set_title(group.name)
    axes.set_xlim(0.4, FIRST + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(-0.02 * axes.get_ylim()[1], axes.get_ylim()[1])
    if group.window is not None:
        _percent_axis(axes, group.window, last)


def _percent_axis(axes: Axes, room: int, labelled: bool) -> None:
    percent = axes.secondary_yaxis(
        "right", functions=(partial(np.multiply, 100 / room), partial(np.multiply, room / 100))
    )
    percent.set_ylabel(f"% of a window of {room:,} tokens" if labelled else "")


def chart(study: StudyData) -> Chart:
    """A line an experiment; its name and its dashes tell the group where there are several."""
    shown = groups(study)
    lines = [
        _line(run, number, strategy if len(shown) == 1 else f"{strategy}, {group.name}", dash)
        for group, dash in zip(shown, cycle(("solid", "dash", "dot")), strict=False)
        for number, (strategy, run) in enumerate(group.strategies)
    ]
    return {
        "data": lines[:MOST_LINES],
        "layout": {
            "xaxis": {"title": {"text": "forward pass"}},
            "yaxis": {"title": {"text": "tokens in the pass"}, "rangemode": "tozero"},
            "height": 440,
        },
        "note": f"The first {MOST_LINES} of {len(lines)} experiments."
        if len(lines) > MOST_LINES
        else "",
    }


def _line(run: Run, number: int, name: str, dash: str) -> dict[str, object]:
    found, room = tokens(run), window(run)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(range(1, len(found) + 1)),
        "y": found,
        "customdata": [
            f"{100 * count / room:.1f} % of {room:,}" if room else "" for count in found
        ],
        "line": {"width": 1.6, "color": style.colour(number), "dash": dash},
        "hovertemplate": "pass %{x}: %{y:,} tokens<br>%{customdata}",
    }


FIGURE = StudyFigure(
    "window_fill",
    "Tokens in the first forward passes",
    f"The first {FIRST} forward passes of the first repeat, by batching strategy. The window is "
    "the most tokens that a pass may have, or the longest request if that is less.",
    available=lambda study: bool(groups(study)),
    draw=draw,
    chart=chart,
)
