"""The set-up: conditions of the measurement, hardware, versions, settings that all share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report import conditions
from kvscope.report.chart import chart
from kvscope.report.circumstances import circumstances, faults, shared
from kvscope.report.render import print_figure
from kvscope.report.section import Report, Section


def _context(report: Report) -> Mapping[str, Any]:
    study = report.study
    title, caption, drawing = conditions.TITLE, conditions.CAPTION, conditions.draw(study)
    return {
        "conditions": conditions.conditions(study),
        "chart": drawing and chart("conditions", title, caption, drawing, print_figure(drawing)),
        "circumstances": circumstances(study),
        "faults": faults(study),
        "shared": shared(study),
    }


SECTION = Section("Set-up", Path(__file__).with_suffix(".html.j2"), _context, order=200)
