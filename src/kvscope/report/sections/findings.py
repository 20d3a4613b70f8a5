"""Findings: what is compared in which metric, and by how much it differs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.findings import by_change, findings, rule
from kvscope.report.section import Report, Section


def _context(report: Report) -> Mapping[str, Any]:
    study = report.study
    return {"findings": findings(study), "by_change": by_change, "headline_rule": rule(study)}


SECTION = Section("Findings", Path(__file__).with_suffix(".html.j2"), _context, order=100)
