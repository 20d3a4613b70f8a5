"""The sections of a study's page: a time window of a run, and its slow requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.api.sections import Section, StudyData
from kvscope_explain.lives import lives_of
from kvscope_explain.time_window import windows_of

HERE = Path(__file__).parent


def _windows(study: StudyData) -> Mapping[str, Any] | None:
    runs = windows_of(study)
    return {"runs": runs} if runs else None


def _requests(study: StudyData) -> Mapping[str, Any] | None:
    lives = lives_of(study)
    return {"lives": lives} if lives["runs"] else None


WINDOW = Section(
    "Time window",
    HERE / "time_window.html.j2",
    _windows,
    order=10,
    styles=(HERE / "lives.css", HERE / "time_window.css"),
    scripts=(HERE / "lives.js", HERE / "time_window.js"),
)
REQUESTS = Section(
    "Requests",
    HERE / "lives.html.j2",
    _requests,
    order=20,
    styles=(HERE / "lives.css",),
    scripts=(HERE / "lives.js",),
)
