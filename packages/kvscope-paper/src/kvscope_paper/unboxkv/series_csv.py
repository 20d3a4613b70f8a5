"""The series that the UnBoxKV-IO artifact of the IPDPS'25 paper publishes, as one frame a run.

vLLM 0.4.2 logged them on an A100: a step series (one row a forward pass) and its stats series (a
row of zeros, then one row a pass); the long form joins the two for several runs in one file.
"""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from kvscope.api.errors import BadInput
from kvscope.api.files import limits, reading
from kvscope_paper.unboxkv import sizes

# Published column → what it is called here. `running` is during the pass; `left`, `swapped`,
# `pending` and the usages are after it.
STEP_SERIES = {"dur(ms)": "duration_ms", "running_reqs": "running", "resumed_reqs": "resumed"}
STATS_SERIES = {
    "Time elapsed (ms)": "elapsed_ms",
    "Avg throughput (tokens/s)": "throughput",
    "Running (reqs)": "left",
    "Swapped (reqs)": "swapped",
    "Pending (reqs)": "pending",
    "GPU KV cache usage (%)": "kv_percent",
    "CPU KV cache usage (%)": "host_percent",
}
LONG_STEPS = {
    "step_duration_ms": "duration_ms",
    "step_running_reqs": "running",
    "step_resumed_reqs": "resumed",
}
LONG_STATS = {
    "elapsed_ms": "elapsed_ms",
    "avg_throughput_tokens_per_s": "throughput",
    "running_requests": "left",
    "swapped_requests": "swapped",
    "pending_requests": "pending",
    "gpu_kv_usage_percent": "kv_percent",
    "cpu_kv_usage_percent": "host_percent",
}
SERIES = "series"  # the long form's column that names the run
FORMS = {
    "a step series": STEP_SERIES,
    "a stats series": STATS_SERIES,
    "the long form": LONG_STEPS | LONG_STATS | {SERIES: SERIES},
}
COUNTS = ("running", "resumed", "left", "swapped", "pending")  # of requests
_MOST = {
    **dict.fromkeys(("duration_ms", "elapsed_ms"), sizes.LONGEST_SERIES_MS),
    **dict.fromkeys(("kv_percent", "host_percent"), 100),
    **dict.fromkeys(COUNTS, sizes.MOST_REQUESTS),
}
# An interval between two stats lines holds one pass; it may seem shorter by what was rounded off.
ROUNDED_MS = 1.0


def read_series(paths: Sequence[Path], series: str | None) -> pd.DataFrame:
    """One run's series: a row before the first pass (pass columns null), then a row a pass.

    `paths` are a step series and its stats series in either order, or one file of the long form,
    of which `series` names the run. BadInput if they are not that, or not of one run.
    """
    files: dict[str, tuple[Path, pd.DataFrame]] = {}
    for path in paths:
        form, frame = _read(path)
        if form in files:
            raise BadInput(f"{path}: {form}, and so is {files[form][0]}; give {_expected()}")
        files[form] = (path, frame)
    if [*files] == ["the long form"]:
        path, frame = files["the long form"]
        chosen = _choose(path, frame, series)
        stats = _numbers(path, chosen, LONG_STATS)
        steps = _numbers(path, chosen.iloc[1:], LONG_STEPS)
        return _join(path, stats, path, steps)
    if set(files) != {"a step series", "a stats series"}:
        given = " and ".join(files) or "nothing"
        raise BadInput(f"{', '.join(map(str, paths))}: {given}; give {_expected()}")
    if series is not None:
        raise BadInput(f"--series {series}: these files hold one run only; leave --series out")
    (step_path, step_frame), (stats_path, stats_frame) = (
        files[form] for form in ("a step series", "a stats series")
    )
    stats = _numbers(stats_path, stats_frame, STATS_SERIES)
    return _join(stats_path, stats, step_path, _numbers(step_path, step_frame, STEP_SERIES))


def _expected() -> str:
    return "a step series with its stats series, or one file of the long form"


def _read(path: Path) -> tuple[str, pd.DataFrame]:
    """A file's form, recognised by its header, and its cells as text, by the number of the line."""
    content = reading.read_bytes(path, sizes.LONGEST_SERIES_BYTES)
    try:
        rows = csv.reader(StringIO(content.decode("utf-8-sig"), newline=""))
        header = next(rows, [])
        cells = [(rows.line_num, row) for row in rows if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not readable as CSV ({error})") from None
    forms = [form for form, columns in FORMS.items() if set(columns) <= set(header)]
    if not forms or len({*header}) < len(header):
        shown = reading.short_repr(",".join(header))
        raise BadInput(f"{path}: header {shown} is of no published series; give {_expected()}")
    for line, row in cells:
        if len(row) != len(header):
            raise BadInput(f"{path}: line {line} has {len(row)} fields, the header {len(header)}")
    lines = [line for line, _ in cells]
    frame = pd.DataFrame([row for _, row in cells], lines, header, dtype=str)
    return forms[0], frame


def _choose(path: Path, frame: pd.DataFrame, series: str | None) -> pd.DataFrame:
    names = list(frame[SERIES].unique())
    shown = reading.one_line(" and ".join(names))
    if series is None and len(names) > 1:
        raise BadInput(f"{path}: holds {shown}; choose one with --series")
    if series is not None and series not in names:
        raise BadInput(f"{path}: has no series '{series}', only {shown}")
    return frame[frame[SERIES] == (series or names[0])] if names else frame


def _numbers(path: Path, frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The columns as numbers from 0 on, under the names they have here."""
    text = frame[list(columns)]
    numbers: pd.DataFrame = text.apply(pd.to_numeric, errors="coerce").astype(float)
    values = numbers.to_numpy()
    most = np.array([_MOST.get(name, limits.INT32[1]) for name in columns.values()])
    whole = np.array([name in COUNTS for name in columns.values()])
    good = (values >= 0) & (values <= most) & ~(whole & (values != np.floor(values)))
    if not good.all():
        row, column = (int(place) for place in np.argwhere(~good)[0])
        kind = "whole number" if whole[column] else "number"
        shown = reading.short_repr(text.to_numpy()[row, column])
        raise BadInput(
            f"{path}: line {text.index[row]} has {shown} for '{list(columns)[column]}', where a "
            f"{kind} from 0 to {most[column]:g} is expected"
        )
    return numbers.rename(columns=dict(columns)).reset_index(drop=True)


def _join(
    stats_path: Path, stats: pd.DataFrame, step_path: Path, steps: pd.DataFrame
) -> pd.DataFrame:
    """Passes beside the stats lines that followed them; BadInput if they are not of one run."""
    if steps.empty or len(stats) != len(steps) + 1:
        raise BadInput(
            f"{stats_path}: {len(stats)} rows for the {len(steps)} passes of {step_path}; one a "
            "pass and one before the first are expected"
        )
    if stats.loc[0].any():
        raise BadInput(f"{stats_path}: its first row is not of zeros; give it as published")
    interval_ms = stats["elapsed_ms"].diff().iloc[1:].reset_index(drop=True)
    impossible = interval_ms < (steps["duration_ms"] - ROUNDED_MS).clip(lower=0)
    if impossible.any():
        place = int(impossible.to_numpy().argmax())
        took, interval = steps["duration_ms"].to_numpy()[place], interval_ms.to_numpy()[place]
        raise BadInput(
            f"{step_path}: pass {place + 1} took {took:g} ms, but its interval in {stats_path} is "
            f"{interval:g} ms; these are not of one run"
        )
    tokens = stats["throughput"].iloc[1:].reset_index(drop=True) * interval_ms / 1e3
    if tokens.max() > limits.INT32[1]:
        raise BadInput(
            f"{stats_path}: pass {int(tokens.argmax()) + 1} did {tokens.max():.0f} tokens by its "
            "throughput; no pass does so many"
        )
    return stats.join(steps.set_index(steps.index + 1))
