"""How full the KV cache is while a repeat runs."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvscope.report import style
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import Chart, StudyFigure
from kvscope.report.figures.multiples import passes_of, recorded, small_multiples
from kvscope.report.thin import edges, thin, with_idle

MOST_LINES = 60
POINTS_A_LINE = 600


def draw(study: StudyData) -> Figure:
    """Blocks and tokens in use over time, an axes an experiment."""
    return small_multiples(study, _draw_one, "share of the cache (%)")


def _draw_one(axes: Axes, run: Run) -> None:
    steps = passes_of(run)
    total = steps["kv_blocks_total"]
    blocks = 100 * steps["kv_blocks_used"] / total
    tokens = 100 * steps["kv_tokens_used"] / (total * run.block_size)
    axes.axhline(100, color="#999999", linewidth=0.7)
    axes.stairs(blocks, edges(steps), baseline=None, color=style.KV_BLOCKS, label="blocks in use")
    axes.stairs(tokens, edges(steps), baseline=None, color=style.KV_TOKENS, label="tokens held")
    axes.set_ylim(0, 106)


def chart(study: StudyData) -> Chart:
    """One line an experiment: blocks in use over time."""
    runs = recorded(study)
    lines = [_line(run, number) for number, run in enumerate(runs[:MOST_LINES])]
    return {
        "data": lines,
        "layout": {
            "xaxis": {"title": {"text": "time since the start of the repeat (s)"}},
            "yaxis": {"title": {"text": "blocks in use (% of the cache)"}, "rangemode": "tozero"},
            "height": 440,
        },
        "note": f"The first {MOST_LINES} of {len(runs)} experiments."
        if len(runs) > MOST_LINES
        else "",
    }


def _line(run: Run, number: int) -> dict[str, object]:
    steps = with_idle(thin(run.steps(run.repeats[0]), POINTS_A_LINE))
    share = 100 * steps["kv_blocks_used"] / steps["kv_blocks_total"]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": run.label,
        "x": [*steps["start_s"].round(6), round(float(steps["end_s"].iloc[-1]), 6)],
        "y": [*share.round(3), round(float(share.iloc[-1]), 3)],
        "line": {
            "shape": "hv",
            "width": 1.6,
            "color": style.colour(number),
            "dash": ("solid", "dash", "dot")[style.cycle(number) % 3],
        },
        "hovertemplate": "%{y:.1f} %",
    }


FIGURE = StudyFigure(
    "kv_timeline",
    "KV cache utilization over time",
    "The first repeat of each experiment.",
    available=lambda study: bool(recorded(study)),
    draw=draw,
    chart=chart,
)
