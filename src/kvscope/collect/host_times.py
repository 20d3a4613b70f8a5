"""Times that a run recorded itself, as nanoseconds since its start on the host's monotonic clock.

The host's tables give instants in seconds since the start of their repeat; run.json has the start
of each repeat.
"""

from typing import Any

import numpy as np
import pandas as pd

from kvscope.arraytypes import Int64s
from kvscope.errors import BadInput
from kvscope.limits import LONGEST_RUN_NS
from kvscope.results import Run
from kvscope.runfile import RUN_FILE
from kvscope.tables import BATCH, LAYERS, PREEMPTIONS, REQUESTS, STEPS

_NEVER_NULL = {"repeat", "step", "layer", "request_id", "start_s", "duration_s"}


def require_times(run: Run) -> None:
    """BadInput unless the run has a clock, and each row of its tables says of what and when it is.

    Seconds must not be longer than a run can last.
    """
    if "clock" not in run.facts:
        path = run.directory / RUN_FILE
        raise BadInput(f"{path}: the run has no clock; it failed before it was measured")
    for table in (REQUESTS, STEPS, BATCH, PREEMPTIONS, LAYERS):
        frame, path = getattr(run, table.name), run.path(table)
        for name in frame.columns:
            if name in _NEVER_NULL and frame[name].isna().any():
                raise BadInput(f"{path}: column '{name}' is null in a row, where a value is due")
            if name.endswith("_s") and (longest := frame[name].abs().max()) > LONGEST_RUN_NS / 1e9:
                raise BadInput(
                    f"{path}: column '{name}' reaches {longest:g} s; no run lasts so long"
                )


def repeats_of(run: Run) -> list[dict[str, Any]]:
    """Each repeat's number, `start_ns` since the run's start, and `duration_s`."""
    repeats: list[dict[str, Any]] = run.facts["clock"]["repeats"]
    return repeats


def instants_ns(run: Run, repeat: pd.Series, seconds: pd.Series) -> Int64s:
    """Instants given in seconds since the start of their repeat, as ns since the run's start."""
    starts = {entry["repeat"]: entry["start_ns"] for entry in repeats_of(run)}
    unknown = set(repeat.unique()) - set(starts)
    if unknown:
        path = run.directory / RUN_FILE
        raise BadInput(f"{path}: clock.repeats has no repeat {min(unknown)}")
    return repeat.map(starts).to_numpy(np.int64) + duration_ns(seconds)


def duration_ns(seconds: pd.Series) -> Int64s:
    """Seconds as whole ns."""
    return np.rint(seconds.to_numpy(np.float64) * 1e9).astype(np.int64)
