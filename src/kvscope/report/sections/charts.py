"""The charts of all figures that have no section of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.figures.registry import figures, missing_figures, unshown_data
from kvscope.report.section import Report, Section, sections


def _context(report: Report) -> Mapping[str, Any]:
    study, drawn = report.study, report.drawings
    apart = {one.figure for one in sections().values()}
    return {
        "drawn": drawn,
        "charts": [
            (name, figures()[name].title, report.chart(name)) for name in drawn if name not in apart
        ],
        "lacking": [*missing_figures(study, drawn), *unshown_data(study)],
    }


SECTION = Section("Charts", Path(__file__).with_suffix(".html.j2"), _context, order=400)
