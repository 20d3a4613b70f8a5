"""The table of experiments; why some are not valid or without results; what was checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.report.reasons import reason_in_words
from kvscope.report.section import Report, Section
from kvscope.report.tables import STUDY_FILES, experiments_table, write_tables
from kvscope.report.validity import checklist
from kvscope.tables.runfile import PERFETTO

TIMELINES = "step_timeline"
TABLE_SCRIPT = Path(__file__).with_name("table.js")


def _context(report: Report) -> Mapping[str, Any]:
    study, timelines = report.study, report.drawings.get(TIMELINES)
    return {
        "table": experiments_table(study),
        "followed": {view.choice[0] for view in timelines.views} if timelines else set(),
        "traces": _traces(report),
        "reasons": {name: reason_in_words(name) for name in study.reasons},
        "checklist": checklist(study.complete),
    }


def _traces(report: Report) -> dict[str, str]:
    """Addresses of the traces for Perfetto, by the experiments' ids."""
    paths = {run.id: run.records.tables_directory / PERFETTO for run in report.study.runs}
    return {name: report.link(path) for name, path in paths.items() if path.is_file()}


SECTION = Section(
    "Experiments",
    Path(__file__).with_suffix(".html.j2"),
    _context,
    order=300,
    scripts=(TABLE_SCRIPT,),
    tables=STUDY_FILES,
    write_tables=write_tables,
)
