"""Timeline of a run, of which the page shows a time window.

Passes are summed in bins of equal length; of requests, the page has the times of each.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvscope.api.runs import RunData
from kvscope.api.sections import ReportedRun, StudyData
from kvscope_explain.lives import explained

MOST_BINS = 300
MOST_REQUESTS = 20_000  # of a run, the last that ended
SUMS = {
    "prefill": "prefill_tokens",
    "decode": "decode_tokens",
    "recomputed": "recomputed_tokens",
    "sampled": "sampled_tokens",
    "preemptions": "preempted_requests",
    "hits": "hit_tokens",
}
"""Sums over the passes of a bin, each with its column of `steps` or `batch`."""
MEANS = {"used": "kv_blocks_used", "running": "requests", "waiting": "waiting_requests"}
"""Means over the passes of a bin, weighted by their seconds, each with its column."""
REQUEST_FIELDS = {
    "arrival": "arrival_s",
    "first_token": "first_token_s",
    "finished": "finished_s",
    "preemptions": "preemptions",
    "prompt": "prompt_tokens",
    "output": "output_tokens",
    "aborted": "aborted",
    "hits": "hit_tokens",
    "queued": "queued_s",
    "recomputed": "recomputed_tokens",
}
"""Fields of a request on the page, and their columns; the last three are from other tables."""


def windows_of(study: StudyData) -> list[dict[str, Any]]:
    """Data for the page's script: the runs whose requests are explained, each over time."""
    shown, _ = explained(study)
    return [{"id": run.id, "label": run.label, **over_time(run)} for run in shown]


def over_time(run: ReportedRun) -> dict[str, Any]:
    """The bins and requests of the first repeat of a run whose times count.

    `bins` has, under each key of SUMS and MEANS, `passes`, `seconds` (of passes) and `peak` (blocks
    in use), a list with one number a bin; `bin_s` is the length of a bin, and `blocks` are those of
    the KV cache. `requests` has a list under `id` and each key of REQUEST_FIELDS: `hits` is null
    without a prefix cache, `queued` where the first pass is not in the records;
    `left_out` is the number of requests beyond the last MOST_REQUESTS.
    """
    records = run.records.of_repeat(min(run.records.timed))
    steps, requests = records.steps, records.requests
    ends = [steps["start_s"] + steps["duration_s"], requests["finished_s"]]
    end_s = max(float(column.max()) for column in ends)
    count = min(MOST_BINS, len(steps))
    last = requests.sort_values("finished_s", kind="stable").tail(MOST_REQUESTS)
    return {
        "bin_s": end_s / count,
        "blocks": int(steps["kv_blocks_total"].iloc[0]),
        "bins": _bins(records, end_s / count, count),
        "requests": _requests(records, last),
        "left_out": len(requests) - len(last),
    }


def _bins(records: RunData, bin_s: float, count: int) -> dict[str, list[float]]:
    """Sums over the passes that began in each bin."""
    steps = records.steps.assign(hit_tokens=_sums(records, "hit_tokens", "step", records.steps))
    bins: NDArray[np.int64] = (steps["start_s"] // bin_s).clip(0, count - 1).to_numpy(np.int64)

    def sums(values: pd.Series) -> list[float]:
        total = np.bincount(bins, values.astype(float).fillna(0), count)
        return [round(value, 6) for value in total.tolist()]

    peak = np.zeros(count)
    np.maximum.at(peak, bins, steps["kv_blocks_used"])
    return {
        "passes": np.bincount(bins, minlength=count).tolist(),
        "seconds": sums(steps["duration_s"]),
        "peak": peak.astype(int).tolist(),
        **{name: sums(steps[column]) for name, column in SUMS.items()},
        **{name: sums(steps[column] * steps["duration_s"]) for name, column in MEANS.items()},
    }


def _requests(records: RunData, requests: pd.DataFrame) -> dict[str, list[Any]]:
    """Columns of requests; times in seconds."""
    cached = records.batch["hit_tokens"].notna().any()
    hits = _sums(records, "hit_tokens", "request_id", requests)
    shown = requests.assign(
        hit_tokens=hits if cached else None,
        queued_s=_queued_s(records, requests),
        recomputed_tokens=_sums(records, "recomputed_tokens", "request_id", requests),
    )
    columns = {name: shown[column] for name, column in REQUEST_FIELDS.items()}
    return {"id": shown["request_id"].tolist()} | {
        name: [_number(value) for value in column] for name, column in columns.items()
    }


def _sums(records: RunData, column: str, key: str, frame: pd.DataFrame) -> pd.Series:
    """The sum of a column of `batch` for each row of a table, by step or request."""
    sums = records.batch[column].astype(float).groupby(records.batch[key]).sum()
    return frame[key].map(sums).fillna(0).astype(np.int64)


def _queued_s(records: RunData, requests: pd.DataFrame) -> pd.Series:
    """Seconds before the first pass of each request, or its end if it had none."""
    never = ~requests["request_id"].isin(records.batch["request_id"])
    until = requests["first_scheduled_s"].fillna(requests["finished_s"].where(never))
    return until - requests["arrival_s"]


def _number(value: Any) -> float | int | None:
    """A JSON number; null where it is not known."""
    if pd.isna(value):
        return None
    return round(value, 6) if isinstance(value, float) else int(value)
