"""Figures of another package: the tokens of each request, and its table."""

from collections.abc import Sequence

from kvscope.api.figures import Axes, charts
from kvscope.api.sections import StudyData


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """A bar a request of the first complete experiment."""
    if not study.complete:
        return None
    requests = study.complete[0].records.requests
    chart = {
        "data": {"name": "requests"},
        "mark": "bar",
        "encoding": {"x": charts.text("request_id"), "y": charts.number("prompt_tokens")},
    }
    rows = requests[["request_id", "prompt_tokens"]]
    return charts.Drawing((charts.View(chart, {"requests": rows}),))


def draw_shares(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """A point a request of each pass of the first complete experiment, from the package's table."""
    if not study.complete or "toy_requests" not in study.complete[0].records.added_names:
        return None
    rows = study.complete[0].records.of_repeat(0).added("toy_requests")
    chart = {
        "data": {"name": "shares"},
        "mark": "point",
        "encoding": {"x": charts.number("step"), "y": charts.number("computed_share")},
    }
    return charts.Drawing((charts.View(chart, {"shares": rows[["step", "computed_share"]]}),))


SHARES = charts.Figure(
    "Shares of requests", "Part of a pass's tokens, by request.", draw_shares, order=999
)
FIGURE = charts.Figure("Tokens of each request", "Prompt tokens by request.", draw, order=15)
