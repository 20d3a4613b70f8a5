"""A study's tables: all metrics, the experiments, and the ratios of those that are compared."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from kvscope import tables
from kvscope.analyse.estimates import ADJUSTED as ADJUSTED_HOW
from kvscope.analyse.metric import Measure
from kvscope.analyse.study_metrics import COLUMNS
from kvscope.files import write_text
from kvscope.report.comparisons import pairs
from kvscope.report.data import Run, StudyData, of_interest
from kvscope.report.words import (
    value_text,
)

EXPERIMENTS_FILE = "experiments.csv"
COMPARISONS_FILE = "comparisons.csv"
STUDY_FILES = (tables.METRICS.file, tables.COMPARISONS.file, COMPARISONS_FILE, EXPERIMENTS_FILE)
"""What `write_tables` writes."""

ADJUSTED = tables.Column("adjusted", tables.BOOL, "whether value is as if nothing had waited")


def study_metrics(keys: tuple[str, ...]) -> tables.Table:
    """The `metrics` table with one text column a varied key after the experiment, and ADJUSTED."""
    first, *rest = tables.METRICS.columns
    varied = (tables.Column(key, tables.TEXT, f"value of {key}; null if none") for key in keys)
    return tables.Table(tables.METRICS.name, tables.METRICS.row, (first, *varied, *rest, ADJUSTED))


def metrics_frame(study: StudyData) -> pd.DataFrame:
    """The metrics of all complete experiments."""
    table = study_metrics(study.keys)
    frames = [
        run.metrics.assign(**{key: _text(run, key) for key in study.keys})
        for run in study.complete
        if run.metrics is not None
    ]
    if not frames:
        return table.empty()
    return pd.concat(frames, ignore_index=True)[table.names]


def main_columns(study: StudyData) -> list[Measure]:
    """The main metrics that the study has: no overhead where nothing is preempted."""
    return [shown for shown in COLUMNS if not shown.optional or of_interest(shown, study.complete)]


def experiments_frame(study: StudyData) -> pd.DataFrame:
    """One row an experiment: what it is, whether to believe it, its main metrics.

    A metric keeps its table's name and unit; `_ci_low` and `_ci_high` are its 95 % interval. Times
    of one that is `adjusted` are as if nothing had waited for a CPU. Where
    packs ran experiments, `node`, `neighbours` (how many) and `gpu_uuids` say where.
    """
    columns = main_columns(study)
    rows = [_row(run, study.keys, columns) for run in study.runs]
    if any("placement" in run.facts for run in study.runs):
        rows = [row | _placement(run) for row, run in zip(rows, study.runs, strict=True)]
    return pd.DataFrame(rows)


def write_tables(study: StudyData, out: Path) -> None:
    """Write all of them into `out`: metrics and comparisons as Parquet, too."""
    tables.write(study_metrics(study.keys), metrics_frame(study), out / tables.METRICS.file)
    compared = comparisons_frame(study)
    tables.write(tables.COMPARISONS, compared, out / tables.COMPARISONS.file)
    _write_csv(compared, out / COMPARISONS_FILE)
    _write_csv(experiments_frame(study), out / EXPERIMENTS_FILE)


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False, lineterminator="\n")
    write_text(path, buffer.getvalue())


def comparisons_frame(study: StudyData) -> pd.DataFrame:
    """The `comparisons` table: the main metrics of all pairs that are compared."""
    rows = [
        (
            *(pair.base.id, pair.other.id, pair.key, shown.name),
            *(one.value, one.low, one.high, one.rounds, one.how == ADJUSTED_HOW, one.how),
        )
        for pair in pairs(study)
        for shown in main_columns(study)
        if (one := pair.compared(shown.name))
    ]
    return pd.DataFrame(rows, columns=tables.COMPARISONS.names)


def _row(run: Run, keys: tuple[str, ...], columns: Sequence[Measure]) -> dict[str, object]:
    row: dict[str, object] = {"id": run.id, "label": run.label}
    row |= {key: _text(run, key) for key in keys}
    row |= {
        "status": run.status,
        "valid": run.valid if run.complete else None,
        "reasons": ";".join(run.reasons) if run.complete else run.failure,
        "time_source": run.time_source,
        "adjusted": run.adjusted if run.complete else None,
    }
    for shown in columns:
        number = run.number(shown.name)
        for suffix, value in (
            ("", number.value),
            ("_ci_low", number.low),
            ("_ci_high", number.high),
        ):
            row[shown.name + suffix] = None if math.isnan(value) else value
    return row


def _placement(run: Run) -> dict[str, object]:
    """Where a pack ran an experiment; the number of its neighbours, and the GPUs' UUIDs."""
    found = run.facts.get("placement") or {}
    gpus = found.get("gpus", {}).get("before", [])
    return {
        "node": found.get("node"),
        "neighbours": len(found["neighbours"]) if "neighbours" in found else None,
        "gpu_uuids": ";".join(gpu["uuid"] for gpu in gpus) or None,
    }


def _text(run: Run, key: str) -> str | None:
    value = run.varied.get(key)
    return None if value is None else value_text(value)
