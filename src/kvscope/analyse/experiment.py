"""One run's metrics: point estimates with intervals, and whether they may be believed."""

from pathlib import Path

import pandas as pd

from kvscope import tables
from kvscope.analyse.access import ACCESS_METRICS
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.records import Records, read_records
from kvscope.analyse.statistics import estimate
from kvscope.analyse.validity import Reason, reasons_against, violated_oracles
from kvscope.runfile import tables_directory

METRICS_FILE = "metrics.parquet"
ACCESS = [name for name, *_ in ACCESS_METRICS]


def analyse(run: Path, out: Path) -> pd.DataFrame:
    """Compute a run's metrics and write them to `out`/metrics.parquet; the `metrics` table."""
    facts, records = read_records(run)
    reasons = [
        *reasons_against(facts, records),
        *violated_oracles(facts, out, tables_directory(run), run),
    ]
    frame = metrics_of(facts["experiment_id"], records, reasons, facts["time_source"])
    tables.write(tables.METRICS, frame, out / METRICS_FILE)
    return frame


def metrics_of(
    experiment_id: str, records: Records, reasons: list[Reason], time_source: str
) -> pd.DataFrame:
    """The `metrics` table of one run."""
    repeats = list(records.repeats())
    rows = []
    for metric in METRICS:
        known = len(records.steps) or metric.name in ACCESS  # published kernels have no passes
        found = estimate([metric.of(repeat) for repeat in repeats] if known else [])
        rows.append(
            (
                experiment_id,
                metric.name,
                found.value,
                found.low,
                found.high,
                metric.unit,
                found.count,
                not reasons,
                ";".join(dict.fromkeys(reason.name for reason in reasons)),
                time_source,
            )
        )
    return pd.DataFrame(rows, columns=tables.METRICS.names)
