"""The metrics of one run: estimates with confidence intervals, and the run's validity."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd

from kvscope import tables
from kvscope.base import rounds
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.reading import describe_error
from kvscope.base.statistics import Interval, estimate, widen
from kvscope.base.time_sources import MODELED
from kvscope.judge.checklist import checklist
from kvscope.judge.planned import confirm_settings, experiment_of
from kvscope.judge.reason import Reason
from kvscope.judge.records import Records, read_records
from kvscope.judge.validity import find_reasons
from kvscope.metrics.circumstances import find_circumstances
from kvscope.metrics.metric import Metric, origin_of
from kvscope.metrics.registry import all_metrics
from kvscope.tables import accounts
from kvscope.tables.accounts import ANALYSED
from kvscope.tables.added import NoTable
from kvscope.tables.runfile import run_sha256
from kvscope.tables.runschema import RepeatRecord


def analyse(run: Path, out: Path, **known: Any) -> pd.DataFrame:
    """Compute a run's metrics, and return the `metrics` table.

    Writes metrics.parquet and repeat_metrics.parquet into `out`, and analyse.json with the
    measurement's hash, the verdicts of all oracles, the reasons if the run is not valid, and its
    circumstances. `known` as for `Run`: `tables_directory` is where the collected tables are.
    Raises BadInput if records are missing or damaged.
    """
    records = read_records(run, **known)
    confirm_settings(records)
    verdicts = checklist(records, collected=True)
    reasons = find_reasons(records, verdicts)
    repeats = repeat_metrics(records, run_sha256(run))
    frame = metrics_of(records, repeats, reasons, run_sha256(run))
    accounts.begin(out, ANALYSED)
    tables.write(tables.METRICS, frame, out / tables.METRICS.file)
    tables.write(tables.REPEAT_METRICS, repeats, out / tables.REPEAT_METRICS.file)
    verdict = {
        "valid": not reasons,
        "reasons": [asdict(reason) for reason in reasons],
        "oracles": [asdict(item) for item in verdicts],
        "circumstances": [asdict(item) for item in find_circumstances(records)],
    }
    accounts.write(out, ANALYSED, run, verdict)
    return frame


def repeat_metrics(records: Records, run_sha256: str) -> pd.DataFrame:
    """The `repeat_metrics` table of one run; `run_sha256` is the hash of its run.json."""
    # Published kernels have no passes.
    metrics = [metric for metric in all_metrics() if len(records.steps) or not metric.needs_passes]
    entries = {entry.repeat: entry for entry in records.record.clock.repeats}
    rows = [
        {"repeat": number, **_circumstances(entries.get(number)), **metric}
        for number, repeat in zip(records.timed, records.valid_repeats(), strict=True)
        for metric in _defined(metrics, repeat)
    ]
    return pd.DataFrame(rows, columns=tables.REPEAT_METRICS.names).assign(
        experiment_id=records.record.experiment_id,
        time_source=records.time_source,
        run_sha256=run_sha256,
    )


def _circumstances(entry: RepeatRecord | None) -> dict[str, Any]:
    """The round in which a repeat was measured, and its waiting, from its entry in run.json."""
    columns: dict[str, Any] = dict.fromkeys(("campaign", "round", "place", "waiting"))
    if entry and entry.round:
        round_ = entry.round
        columns |= {"campaign": round_.campaign, "round": round_.number, "place": round_.place}
    if entry and entry.ran_s is not None and entry.waited_s is not None:
        columns["waiting"] = rounds.waiting(entry.ran_s, entry.waited_s)
    return columns


def _defined(metrics: Iterable[Metric], repeat: Records) -> Iterator[dict[str, Any]]:
    for metric in metrics:
        if not math.isnan(value := _value(metric, repeat)):
            yield {"metric": metric.name, "value": value, "unit": metric.unit}


def _value(metric: Metric, repeat: Records) -> float:
    """A metric's value; BadInput names the package that fails."""
    try:
        return float(metric.of(repeat))
    except NoTable:  # of a package that was not installed when the run was made
        return math.nan
    except KvscopeError:
        raise
    except Exception as error:
        if package := origin_of(metric):
            raise BadInput(
                f"metric {metric.name} of {package} raised {describe_error(error)}; fix or "
                "uninstall its package"
            ) from error
        raise


def metrics_of(
    records: Records, repeats: pd.DataFrame, reasons: list[Reason], run_sha256: str
) -> pd.DataFrame:
    """The `metrics` table of one run, from its `repeat_metrics`; `run_sha256` as for these."""
    values_of = {str(name): rows.tolist() for name, rows in repeats.groupby("metric")["value"]}
    intervals = {metric.name: _estimate(metric, values_of) for metric in all_metrics()}
    values = {metric: intervals[metric.name].value for metric in all_metrics()}
    for name, modeled in _modeled_intervals(records, values).items():
        intervals[name] = replace(intervals[name], low=modeled.low, high=modeled.high)
    estimates = pd.DataFrame([vars(interval) for interval in intervals.values()])
    columns = {
        "experiment_id": records.record.experiment_id,
        "metric": [*intervals],
        "value": estimates["value"],
        "ci_low": estimates["low"],
        "ci_high": estimates["high"],
        "unit": [metric.unit for metric in all_metrics()],
        "repeats_valid": estimates["count"],
        "valid": not reasons,
        "reasons": ";".join(dict.fromkeys(reason.name for reason in reasons)),
        "time_source": records.time_source,
        "run_sha256": run_sha256,
    }
    return pd.DataFrame(columns)[tables.METRICS.names]


def _modeled_intervals(records: Records, values: Mapping[Metric, float]) -> Mapping[str, Interval]:
    """Intervals of a modeled run's metrics, as its device gives them."""
    if records.time_source != MODELED or records.steps.empty:
        return {}
    named = experiment_of(records).device.intervals
    return resolve_name(named)(records, values) if named else {}


def _estimate(metric: Metric, values_of: Mapping[str, list[float]]) -> Interval:
    """A metric over repeats; the interval includes the method's mean uncertainty."""
    interval = estimate(values_of.get(metric.name, []))
    if metric.uncertainty is None or interval.count < 2:
        return interval
    return widen(interval, estimate(values_of.get(metric.uncertainty.name, [])).value)
