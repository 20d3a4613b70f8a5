"""The charts of all figures that have no section of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.figures import registry
from kvscope.report.section import Report, Section, sections


def _context(report: Report) -> Mapping[str, Any]:
    study, drawn, figures = report.study, report.drawings, registry.figures()
    apart = {section.figure for section in sections().values()}
    shown = [name for name in drawn if name not in apart]
    return {
        "drawn": drawn,
        "charts": [(name, figures[name].title, report.chart(name)) for name in shown],
        "lacking": [*registry.missing_figures(study, drawn), *registry.unshown_data(study)],
    }


SECTION = Section("Charts", Path(__file__).with_suffix(".html.j2"), _context, order=400)
