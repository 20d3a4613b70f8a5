"""A figure of another package: the tokens of each request."""

from collections.abc import Sequence

from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing, Figure, View, number, text


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A bar a request of the first complete experiment."""
    if not study.complete:
        return None
    requests = study.complete[0].records.requests
    chart = {
        "data": {"name": "requests"},
        "mark": "bar",
        "encoding": {"x": text("request_id"), "y": number("prompt_tokens")},
    }
    return Drawing((View(chart, {"requests": requests[["request_id", "prompt_tokens"]]}),))


FIGURE = Figure("Tokens of each request", "Prompt tokens by request.", draw, order=15)
