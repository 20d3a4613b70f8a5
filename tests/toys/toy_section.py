"""A section of a study's page: how many passes each run had, with a script that says so."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.api.sections import section

HERE = Path(__file__).parent


def passes(report: section.Report) -> Mapping[str, Any] | None:
    """The passes of each complete run."""
    counts = {run.label: len(run.records.steps) for run in report.study.complete}
    return {"counts": counts} if counts else None


PASSES = section.Section(
    "Passes of each run",
    HERE / "toy_section.html.j2",
    passes,
    order=615,
    styles=(HERE / "toy_section.css",),
    scripts=(HERE / "toy_section.js",),
)
