"""What each forward pass computes: tokens of prefill and of decode."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvscope.report import style
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import StudyFigure, no_chart
from kvscope.report.figures.multiples import passes_of, recorded, small_multiples
from kvscope.report.thin import edges


def draw(study: StudyData) -> Figure:
    """Stacked tokens of every pass over time, an axes an experiment."""
    return small_multiples(study, _draw_one, "tokens in the pass")


def _draw_one(axes: Axes, run: Run) -> None:
    steps = passes_of(run)
    decode, prefill = steps["decode_tokens"], steps["prefill_tokens"]
    axes.stairs(decode, edges(steps), fill=True, color=style.DECODE, label="decode")
    axes.stairs(
        decode + prefill,
        edges(steps),
        baseline=decode,
        fill=True,
        color=style.PREFILL,
        label="prefill (prompts and recomputation)",
    )
    axes.set_ylim(bottom=0)


FIGURE = StudyFigure(
    "batch_composition",
    "Tokens in each forward pass",
    "The first repeat of each experiment.",
    available=lambda study: bool(recorded(study)),
    draw=draw,
    chart=no_chart,  # the page's step timelines show it for every experiment and repeat
)
