"""Times of the host's tables in nanoseconds since the run's start, on the host's monotonic clock.

The tables have seconds since the start of a repeat; run.json has the start of each repeat.
"""

import numpy as np
import pandas as pd

from kvscope.base.arraytypes import Int64s
from kvscope.base.errors import BadInput
from kvscope.base.limits import LONGEST_RUN_NS
from kvscope.tables import BATCH, LAYERS, PREEMPTIONS, REQUESTS, STEPS, TRANSFERS
from kvscope.tables.added import job_table
from kvscope.tables.run_data import RunData
from kvscope.tables.runfile import RUN_FILE

_NEVER_NULL = {"repeat", "step", "layer", "request_id", "start_s", "duration_s"}


def require_times(run: RunData) -> None:
    """Check that the run has a clock, and its tables keys and plausible times.

    Raises BadInput if a key or a time that every row needs is null, or if a time exceeds the
    longest possible run.
    """
    if not run.record.states("clock"):
        path = run.directory / RUN_FILE
        raise BadInput(f"{path}: the run has no clock; it failed before it was measured")
    tables = (REQUESTS, STEPS, PREEMPTIONS, TRANSFERS, LAYERS)
    frames = {table.file: getattr(run, table.name) for table in tables}
    # The largest table, which nothing else here reads.
    keys = [name for name in BATCH.names if name in _NEVER_NULL]
    frames[BATCH.file] = run.batch if BATCH.name in vars(run) else run.read_table(BATCH.name, keys)
    if jobs := job_table():
        frames[jobs.table.file] = run.jobs
    for file, frame in frames.items():
        path = run.directory / file
        for name in frame.columns:
            # Copies may be of several requests, and published ones have no instants.
            required = "copy_s" not in frame or name in ("repeat", "step")
            if name in _NEVER_NULL and required and frame[name].isna().any():
                raise BadInput(f"{path}: column '{name}' is null in a row; every row needs a value")
            if name.endswith("_s") and (longest := frame[name].abs().max()) > LONGEST_RUN_NS / 1e9:
                raise BadInput(
                    f"{path}: column '{name}' reaches {longest:g} s; no run lasts so long"
                )


def instants_ns(run: RunData, repeat: pd.Series, seconds: pd.Series) -> Int64s:
    """Convert seconds since the start of a repeat to ns since the run's start.

    Raises BadInput if run.json lacks a repeat.
    """
    starts = {entry.repeat: entry.start_ns for entry in run.record.clock.repeats}
    unknown = set(repeat.unique()) - set(starts)
    if unknown:
        path = run.directory / RUN_FILE
        raise BadInput(f"{path}: clock.repeats has no repeat {min(unknown)}")
    return repeat.map(starts).to_numpy(np.int64) + duration_ns(seconds)


def duration_ns(seconds: pd.Series) -> Int64s:
    """Convert seconds to ns, rounded to integers."""
    return np.rint(seconds.to_numpy(np.float64) * 1e9).astype(np.int64)
