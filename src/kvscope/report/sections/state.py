"""The state of a study of which something is missing, or not valid."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.section import Report, Section

FAILED = 3  # experiments that are named


def _context(report: Report) -> Mapping[str, Any] | None:
    study = report.study
    if study.finished and not study.doubtful:
        return None
    return {"failed": [run for run in study.unfinished if run.failure][:FAILED]}


SECTION = Section("", Path(__file__).with_suffix(".html.j2"), _context, order=20)
