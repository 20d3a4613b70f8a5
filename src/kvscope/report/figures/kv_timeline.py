"""How full the KV cache and the host pool are while a repeat runs, and who is preempted when."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvscope.report import style
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import Chart, StudyFigure
from kvscope.report.figures.multiples import passes_of, recorded, small_multiples
from kvscope.report.thin import edges, thin, with_idle

MOST_LINES = 60
AT_FIRST = 8  # experiments; the others show when their names are clicked
POINTS_A_LINE = 600
MOST_MARKERS = 400
# Heights of the marks above the 100 % line, by event.
MARKS = {
    "preempt": ("preempted", 114, style.PREEMPTED, "v", "triangle-down"),
    "resume": ("resumed", 107, style.RESUMED, "^", "triangle-up"),
}
TOP = 120


def draw(study: StudyData) -> Figure:
    """Blocks and tokens in use over time, an axes an experiment."""
    return small_multiples(study, _draw_one, "share in use (%)")


def _draw_one(axes: Axes, run: Run) -> None:
    steps = passes_of(run)
    total = steps["kv_blocks_total"]
    lines = [
        ("blocks in use", style.KV_BLOCKS, steps["kv_blocks_used"] / total),
        ("tokens held", style.KV_TOKENS, steps["kv_tokens_used"] / (total * run.block_size)),
    ]
    if steps["host_blocks_total"].any():
        pool = steps["host_blocks_used"] / steps["host_blocks_total"].max()
        lines.append(("host pool in use", style.HOST_BLOCKS, pool))
    axes.axhline(100, color="#999999", linewidth=0.7)
    for name, colour, share in lines:
        axes.stairs(100 * share, edges(steps), baseline=None, color=colour, label=name)
    axes.set_ylim(0, 106)
    for event, (name, height, colour, marker, _) in MARKS.items():
        times = event_times(run, event)
        if len(times):
            heights = np.full(len(times), height)
            axes.plot(times, heights, marker, color=colour, markersize=2.4, label=name, alpha=0.8)
            axes.set_ylim(0, TOP)
    axes.set_yticks(range(0, 101, 25))


def event_times(run: Run, event: str) -> pd.Series:
    """When the passes of the first repeat began that preempted ('preempt') or resumed requests."""
    repeat = run.repeats[0]
    events, steps = run.preemptions(repeat), run.steps(repeat)
    passes = events.loc[events["event"] == event, "step"].unique()
    return steps.set_index("step")["start_s"].reindex(passes).dropna()


def chart(study: StudyData) -> Chart:
    """One line an experiment: blocks in use over time; its host pool and its events besides."""
    runs = recorded(study)
    traces = [trace for n, run in enumerate(runs[:MOST_LINES]) for trace in _traces(run, n)]
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": "time since the start of the repeat (s)"}},
            "yaxis": {"title": {"text": "share in use (%)"}, "rangemode": "tozero"},
            "height": 440 + 11 * min(len(runs), MOST_LINES),  # the names below need room
        },
        "note": _note(len(runs)),
    }


def _note(count: int) -> str:
    names = f"The first {MOST_LINES} of {count} experiments. " if count > MOST_LINES else ""
    hidden = f"A click on a name shows what is not among the first {AT_FIRST}."
    return f"{names}{hidden if count > AT_FIRST else ''}".strip()


def _traces(run: Run, number: int) -> list[dict[str, object]]:
    """An experiment's lines and marks, which a click in the legend hides together."""
    steps = with_idle(thin(run.steps(run.repeats[0]), POINTS_A_LINE))
    shown = number < AT_FIRST or "legendonly"
    shared = {"legendgroup": run.id, "name": run.label, "visible": shown}
    dash = ("solid", "dash", "dot")[style.cycle(number) % 3]
    line = {"color": style.colour(number), "dash": dash, "width": 1.6}
    used = steps["kv_blocks_used"] / steps["kv_blocks_total"]
    traces = [shared | _line(steps, used, line, "%{y:.1f} % of the cache")]
    if steps["host_blocks_total"].any():
        pool = steps["host_blocks_used"] / steps["host_blocks_total"].max()
        thinner = line | {"dash": "dot", "width": 1.2}
        text = "%{y:.1f} % of the host pool"
        traces.append(shared | {"showlegend": False} | _line(steps, pool, thinner, text))
    return traces + [
        shared | {"showlegend": False} | _marks(run, event, line["color"]) for event in MARKS
    ]


def _line(
    steps: pd.DataFrame, share: pd.Series, line: dict[str, object], text: str
) -> dict[str, object]:
    percent = (100 * share).round(3)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*steps["start_s"].round(6), round(float(steps["end_s"].iloc[-1]), 6)],
        "y": [*percent, float(percent.iloc[-1])],
        "line": line | {"shape": "hv"},
        "hovertemplate": text,
    }


def _marks(run: Run, event: str, colour: object) -> dict[str, object]:
    name, height, _, _, symbol = MARKS[event]
    times = event_times(run, event).head(MOST_MARKERS).round(6).tolist()
    return {
        "type": "scatter",
        "mode": "markers",
        "x": times,
        "y": [height] * len(times),
        "marker": {"symbol": symbol, "size": 6, "color": colour},
        "hovertemplate": f"{name} at %{{x:.3f}} s",
    }


FIGURE = StudyFigure(
    "kv_timeline",
    "KV cache utilization over time",
    "The first repeat of each experiment: blocks of the KV cache in use, and of the host pool "
    "(dotted on this page) where there is one. Triangles above: passes that preempted (down) or "
    "resumed requests (up).",
    available=lambda study: bool(recorded(study)),
    draw=draw,
    chart=chart,
)
