"""The metrics of one run: estimates with confidence intervals, and the run's validity."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvscope import accounts, tables
from kvscope.accounts import ANALYSED
from kvscope.analyse import access_metrics
from kvscope.analyse.calibration.intervals import modeled_intervals
from kvscope.analyse.checklist import checklist
from kvscope.analyse.circumstances import find_circumstances
from kvscope.analyse.metric import Metric
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.reason import Reason
from kvscope.analyse.records import Records, read_records
from kvscope.analyse.statistics import Estimate, estimate, widen
from kvscope.analyse.validity import find_reasons
from kvscope.runfile import run_sha256


def analyse(run: Path, out: Path, **known: Any) -> pd.DataFrame:
    """Compute a run's metrics, write `out`/metrics.parquet, and return the `metrics` table.

    Also writes `out`/analyse.json with the measurement's hash, the verdicts of all oracles, the
    reasons if the run is not valid, and its circumstances. `known` as for `Run`:
    `tables_directory` is where the collected tables are. Raises BadInput if records are missing or
    damaged.
    """
    records = read_records(run, **known)
    verdicts = checklist(records, collected=True)
    reasons = find_reasons(records, verdicts)
    frame = metrics_of(records, reasons, run_sha256(run))
    accounts.begin(out, ANALYSED)
    tables.write(tables.METRICS, frame, out / tables.METRICS.file)
    verdict = {
        "valid": not reasons,
        "reasons": [asdict(reason) for reason in reasons],
        "oracles": [asdict(each) for each in verdicts],
        "circumstances": [asdict(each) for each in find_circumstances(records)],
    }
    accounts.write(out, ANALYSED, run, verdict)
    return frame


def metrics_of(records: Records, reasons: list[Reason], run_sha256: str) -> pd.DataFrame:
    """The `metrics` table of one run; `run_sha256` is the hash of its run.json."""
    facts = records.facts
    repeats = list(records.valid_repeats())
    known = (
        METRICS if len(records.steps) else access_metrics.METRICS
    )  # published kernels have no passes
    found = {m.name: _estimate_over_repeats(m, repeats if m in known else []) for m in METRICS}
    values = {metric: found[metric.name].value for metric in METRICS}
    for name, (low, high) in modeled_intervals(records, values).items():
        found[name] = replace(found[name], low=low, high=high)
    estimates = pd.DataFrame([vars(one) for one in found.values()])
    columns = {
        "experiment_id": facts["experiment_id"],
        "metric": [*found],
        "value": estimates["value"],
        "ci_low": estimates["low"],
        "ci_high": estimates["high"],
        "unit": [metric.unit for metric in METRICS],
        "repeats_valid": estimates["count"],
        "valid": not reasons,
        "reasons": ";".join(dict.fromkeys(reason.name for reason in reasons)),
        "time_source": facts["time_source"],
        "run_sha256": run_sha256,
    }
    return pd.DataFrame(columns)[tables.METRICS.names]


def _estimate_over_repeats(metric: Metric, repeats: list[Records]) -> Estimate:
    """Estimate a metric over repeats; the interval includes the method's mean uncertainty."""
    found = estimate([metric.of(repeat) for repeat in repeats])
    if metric.uncertainty is None or found.count < 2:
        return found
    return widen(found, float(np.mean([metric.uncertainty(repeat) for repeat in repeats])))
