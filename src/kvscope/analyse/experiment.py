"""One run's metrics: point estimates with intervals, and whether they may be believed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from kvscope import accounts, tables
from kvscope.accounts import ANALYSED
from kvscope.analyse import access_metrics
from kvscope.analyse.checklist import checklist
from kvscope.analyse.metric import Metric
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.reason import Reason
from kvscope.analyse.records import Records, disturbances, read_records
from kvscope.analyse.statistics import Estimate, estimate, widen
from kvscope.analyse.validity import find_reasons
from kvscope.runfile import run_sha256


def analyse(run: Path, out: Path) -> pd.DataFrame:
    """Compute a run's metrics and write them to `out`/metrics.parquet; the `metrics` table.

    `out`/analyse.json says of which measurement, what every oracle found, and why the run is not
    valid if it is not.
    """
    records = read_records(run)
    verdicts = checklist(records, collected=True)
    reasons = find_reasons(records, verdicts)
    frame = metrics_of(records, reasons, run_sha256(run))
    accounts.begin(out, ANALYSED)
    tables.write(tables.METRICS, frame, out / tables.METRICS.file)
    verdict = {
        "valid": not reasons,
        "reasons": [asdict(reason) for reason in reasons],
        "oracles": [asdict(each) for each in verdicts],
        "disturbed": disturbances(records.facts),
    }
    accounts.write(out, ANALYSED, run, verdict)
    return frame


def metrics_of(records: Records, reasons: list[Reason], run_sha256: str) -> pd.DataFrame:
    """The `metrics` table of one run, whose run.json has this SHA-256."""
    facts = records.facts
    repeats = list(records.valid_repeats())
    known = (
        METRICS if len(records.steps) else access_metrics.METRICS
    )  # published kernels have no passes
    found = {m.name: _estimate_over_repeats(m, repeats if m in known else []) for m in METRICS}
    values = pd.DataFrame([vars(one) for one in found.values()])
    columns = {
        "experiment_id": facts["experiment_id"],
        "metric": [*found],
        "value": values["value"],
        "ci_low": values["low"],
        "ci_high": values["high"],
        "unit": [metric.unit for metric in METRICS],
        "repeats_valid": values["count"],
        "valid": not reasons,
        "reasons": ";".join(dict.fromkeys(reason.name for reason in reasons)),
        "time_source": facts["time_source"],
        "run_sha256": run_sha256,
    }
    return pd.DataFrame(columns)[tables.METRICS.names]


def _estimate_over_repeats(metric: Metric, repeats: list[Records]) -> Estimate:
    """A metric over the repeats, its interval widened by the mean uncertainty of its method."""
    found = estimate([metric.of(repeat) for repeat in repeats])
    if metric.uncertainty is None or found.count < 2:
        return found
    return widen(found, float(np.mean([metric.uncertainty(repeat) for repeat in repeats])))
