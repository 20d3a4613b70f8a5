"""One run's metrics: point estimates with intervals, and whether they may be believed."""

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from kvscope import accounts, tables
from kvscope.accounts import ANALYSED
from kvscope.analyse.access import ACCESS_METRICS
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.reason import Reason
from kvscope.analyse.records import Records, read_records
from kvscope.analyse.statistics import estimate
from kvscope.analyse.validity import reasons_against, violated_oracles
from kvscope.runfile import run_sha256, tables_directory

METRICS_FILE = "metrics.parquet"
ACCESS = [name for name, *_ in ACCESS_METRICS]


def analyse(run: Path, out: Path) -> pd.DataFrame:
    """Compute a run's metrics and write them to `out`/metrics.parquet; the `metrics` table.

    `out`/analyse.json says of which measurement, and why the run is not valid if it is not.
    """
    facts, records = read_records(run)
    reasons = [
        *reasons_against(facts, records),
        *violated_oracles(facts, run, tables_directory(run)),
    ]
    of = facts["experiment_id"], facts["time_source"], run_sha256(run)
    frame = metrics_of(records, reasons, *of)
    accounts.begin(out, ANALYSED, [METRICS_FILE])
    tables.write(tables.METRICS, frame, out / METRICS_FILE)
    verdict = {
        "valid": not reasons,
        "reasons": [asdict(reason) for reason in reasons],
        "disturbed": [entry for entry in facts.get("disturbance", []) if entry["disturbed"]],
    }
    accounts.write(out, ANALYSED, run, [METRICS_FILE], verdict)
    return frame


def metrics_of(
    records: Records,
    reasons: list[Reason],
    experiment_id: str,
    time_source: str,
    run_sha256: str,
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
                run_sha256,
            )
        )
    return pd.DataFrame(rows, columns=tables.METRICS.names)
