"""The title of the page, what the study is, and which of its numbers were not measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.conditions import caveats
from kvscope.report.pages import pages_of
from kvscope.report.section import Report, Section


def _context(report: Report) -> Mapping[str, Any]:
    return {"pages": pages_of(report.study), "caveats": caveats(report.study)}


SECTION = Section("", Path(__file__).with_suffix(".html.j2"), _context, order=10)
