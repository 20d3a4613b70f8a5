"""Error of the net cost of a preemption: plain decode passes are judged as if they resumed.

    python bench/net_control.py results/experiments/* [--write]

Of each run given: the mean error of a plain decode pass against the time that kvscope
estimates from the other passes, and against the median of the ten nearest plain decode passes,
which ignores their batch; and the metrics. `--write` keeps them in bench/results/net_control.json.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

import numpy as np
from measuring import store

from kvscope.judge.records import Records, read_records
from kvscope.metrics import overhead
from kvscope.metrics.experiment import metrics_of, repeat_metrics
from kvscope.tables.due import NEAREST

METRICS = [f"resume_overhead_net{what}_s" for what in ("", "_control", "_uncertainty")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    result = {run.name: of_run(run) for run in arguments.runs}
    print(json.dumps(result, indent=2))
    if arguments.write:
        store("net_control", {"runs": result}, "python bench/net_control.py RUN…")


def of_run(run: Path) -> dict[str, object]:
    """The mean errors of a pass over the repeats, and the metrics, in milliseconds."""
    records = read_records(run)
    repeats = list(records.valid_repeats())
    errors = [overhead.control_errors_s(repeat) for repeat in repeats]
    result = metrics_of(records, repeat_metrics(records, ""), [], "").set_index("metric")
    return {
        "repeats": len(repeats),
        "preemptions": result.at["preemptions", "value"],
        "plain_passes": sum(map(len, errors)),
        "error_ms": 1e3 * fmean(error.mean() for error in errors),
        "error_of_nearest_median_ms": 1e3 * fmean(map(nearest_median_error_s, repeats)),
        "metrics_ms": {
            metric: (
                1e3 * result.loc[metric, ["value", "ci_low", "ci_high"]].to_numpy(float)
            ).tolist()
            for metric in METRICS
        },
    }


def nearest_median_error_s(records: Records) -> float:
    """Mean of plain decode passes less the median of the NEAREST others by step."""
    plain = records.steps.loc[overhead.control_errors_s(records).index]
    step, duration = (plain[column].to_numpy(np.float64) for column in ("step", "duration_s"))
    away = np.abs(step[:, None] - step) + np.diag(np.full(len(step), np.inf))
    nearest = np.argsort(away, axis=1, kind="stable")[:, :NEAREST]
    return float((duration - np.median(duration[nearest], axis=1)).mean())


if __name__ == "__main__":
    main()
