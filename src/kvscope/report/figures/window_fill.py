"""Tokens in the first forward passes by batching strategy, beside the limit of a pass."""

from collections.abc import Sequence

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.plan.traits import names, setting_words, without
from kvscope.report.axes import Place, rows, strategy_key
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.by_grid import by_grid
from kvscope.report.figures.figure import Drawing, Figure, number
from kvscope.report.figures.lines import DOTTED, Lines, lines_drawing

FIRST = 20
MOST_GROUPS = 6


def window(run: ReportedRun) -> int | None:
    """The most tokens a pass may have, or the longest request if that is less."""
    engine = run.settings.get("engine", {})
    limits = [engine.get("max_num_batched_tokens"), engine.get("max_model_len")]
    return min(limits) if all(limits) else None


def groups(study: StudyData) -> dict[str, list[tuple[str, ReportedRun]]]:
    """Experiments that differ in their batching strategy alone, by their other settings."""
    key = strategy_key(study)
    if key is None:
        return {}
    (row, *_) = rows(study, lambda run: run.has_passes, [Axes(x=key)])
    others = {place.run.id: without(study.traits[place.run.id], key) for place in row.places}
    same_rest: dict[str, list[Place]] = {}
    for place in row.places:
        same_rest.setdefault(repr(others[place.run.id]), []).append(place)
    several = [places for places in same_rest.values() if len(places) > 1]
    words = names([others[places[0].run.id] for places in several])
    return {
        name: [(setting_words(key, place.x), place.run) for place in places]
        for name, places in zip(words, several, strict=True)
    }


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A plot a group, a line a strategy."""
    named = groups(study)
    if not named:
        return None
    shown = list(named.items())[:MOST_GROUPS]
    note = f"The first {MOST_GROUPS} of {len(named)} groups." if len(named) > MOST_GROUPS else ""
    percent = number("percent", title="of the window (%)", format=".1f")
    plots = [_plot(name, group) for name, group in shown]
    return lines_drawing(plots, {}, DOTTED, tooltip=[percent], note=note)


def _plot(name: str, group: list[tuple[str, ReportedRun]]) -> Lines:
    windows = {window(run) for _, run in group}
    room = windows.pop() if len(windows) == 1 else None
    words = f"a window of {room:,} tokens" if room else ""
    return Lines(_table(group), "forward pass", "tokens in the pass", name, words, counts=True)


def _table(group: list[tuple[str, ReportedRun]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "line": strategy,
                "x": number,
                "y": tokens,
                "percent": 100 * tokens / room if (room := window(run)) else None,
            }
            for strategy, run in group
            for number, tokens in enumerate(first_tokens(run), 1)
        ]
    )


def first_tokens(run: ReportedRun) -> list[int]:
    """Tokens of the first forward passes of the first repeat."""
    return [int(tokens) for tokens in run.steps(run.repeats[0])["scheduled_tokens"].head(FIRST)]


FIGURE = Figure(
    "Tokens in the first forward passes",
    f"The first {FIRST} forward passes of the first repeat, by batching strategy. The window is "
    "the most tokens that a pass may have, or the longest request if that is less.",
    by_grid(draw),
    order=40,
)
