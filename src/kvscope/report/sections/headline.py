"""The headline of a study with the chart that shows it, and its verdict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kvscope
from kvscope.report.chart import chart
from kvscope.report.circumstances import dates
from kvscope.report.conditions import missed_widths
from kvscope.report.findings import headline
from kvscope.report.render import print_figure
from kvscope.report.section import Report, Section
from kvscope.report.validity import verdict


def _context(report: Report) -> Mapping[str, Any]:
    study = report.study
    lead = headline(study)
    drawing = lead.drawing
    return {
        "headline": lead.sentence,
        "lead": drawing and chart("lead", lead.title, "", drawing, print_figure(drawing)),
        "verdict": verdict(study),
        "missed": missed_widths(study),
        "dates": dates(study),
        "version": kvscope.__version__,
    }


SECTION = Section("", Path(__file__).with_suffix(".html.j2"), _context, order=30)
