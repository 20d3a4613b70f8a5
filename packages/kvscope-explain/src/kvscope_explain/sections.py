"""The sections of a study's page: a time window of a run, and its slow requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.api.sections import section
from kvscope_explain.lives import lives_of
from kvscope_explain.time_window import windows_of
from kvscope_explain.token_section import tokens_of

HERE = Path(__file__).parent


def _windows(report: section.Report) -> Mapping[str, Any] | None:
    runs = windows_of(report.study)
    return {"runs": runs} if runs else None


def _requests(report: section.Report) -> Mapping[str, Any] | None:
    lives = lives_of(report.study)
    return {"lives": lives, "tokens": tokens_of(report.study, lives)} if lives["runs"] else None


WINDOW = section.Section(
    "Time window",
    HERE / "time_window.html.j2",
    _windows,
    order=610,
    styles=(HERE / "lives.css", HERE / "time_window.css"),
    scripts=(HERE / "lives.js", HERE / "time_window.js"),
)
REQUESTS = section.Section(
    "Requests",
    HERE / "lives.html.j2",
    _requests,
    order=620,
    styles=(HERE / "lives.css",),
    scripts=(HERE / "lives.js", HERE / "tokens.js"),
)
