"""One run's metrics: point estimates with intervals, and whether they may be believed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from kvscope import accounts, tables
from kvscope.accounts import ANALYSED
from kvscope.analyse.access import ACCESS_METRICS
from kvscope.analyse.checklist import checklist
from kvscope.analyse.metrics import METRICS, Metric
from kvscope.analyse.reason import Reason
from kvscope.analyse.records import Records, read_records
from kvscope.analyse.statistics import Estimate, estimate, widened
from kvscope.analyse.validity import reasons_against
from kvscope.runfile import run_sha256, tables_directory

METRICS_FILE = "metrics.parquet"
ACCESS = [name for name, *_ in ACCESS_METRICS]


def analyse(run: Path, out: Path) -> pd.DataFrame:
    """Compute a run's metrics and write them to `out`/metrics.parquet; the `metrics` table.

    `out`/analyse.json says of which measurement, what every oracle found, and why the run is not
    valid if it is not.
    """
    facts, records = read_records(run)
    verdicts = checklist(run, facts, records, tables_directory(run))
    reasons = reasons_against(facts, records, verdicts)
    of = facts["experiment_id"], facts["time_source"], run_sha256(run)
    frame = metrics_of(records, reasons, *of)
    accounts.begin(out, ANALYSED, [METRICS_FILE])
    tables.write(tables.METRICS, frame, out / METRICS_FILE)
    verdict = {
        "valid": not reasons,
        "reasons": [asdict(reason) for reason in reasons],
        "oracles": [asdict(each) for each in verdicts],
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
    """The `metrics` table of one run, of its repeats that count."""
    repeats = list(records.repeats())
    rows = []
    for metric in METRICS:
        known = len(records.steps) or metric.name in ACCESS  # published kernels have no passes
        found = _estimated(metric, repeats if known else [])
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


def _estimated(metric: Metric, repeats: list[Records]) -> Estimate:
    """A metric over the repeats, its interval widened by the mean uncertainty of its method."""
    found = estimate([metric.of(repeat) for repeat in repeats])
    if metric.uncertainty is None or found.count < 2:
        return found
    return widened(found, float(np.mean([metric.uncertainty(repeat) for repeat in repeats])))
