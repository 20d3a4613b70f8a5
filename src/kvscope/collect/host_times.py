"""What the run itself recorded: its clock and its tables, with instants as ns since its start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvscope.collect.nsys.nullable import Int64s
from kvscope.errors import BadInput
from kvscope.limits import LONGEST_RUN_NS
from kvscope.runfile import RUN_FILE, read_run, require_unchanged
from kvscope.tables import BATCH, LAYERS, PREEMPTIONS, REQUESTS, STEPS, Table, read

_NEVER_NULL = {"repeat", "step", "layer", "request_id", "start_s", "duration_s"}


@dataclass(frozen=True)
class HostRecords:
    """A run directory's own records. A table that the run did not get to write has no rows."""

    run_json: Path
    run: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame
    batch: pd.DataFrame
    preemptions: pd.DataFrame
    layers: pd.DataFrame

    @classmethod
    def read(cls, run_dir: Path) -> "HostRecords":
        """Read a run directory; BadInput names what is missing, damaged or changed."""
        run_json = run_dir / RUN_FILE
        run = read_run(run_dir)
        if "clock" not in run:
            raise BadInput(f"{run_json}: the run has no clock; it failed before it was measured")

        def table(of: Table) -> pd.DataFrame:
            path = run_dir / f"{of.name}.parquet"
            require_unchanged(run_dir, run, path.name)
            return _checked(read(of, path), path) if path.exists() else of.empty()

        return cls(run_json, run, *map(table, (REQUESTS, STEPS, BATCH, PREEMPTIONS, LAYERS)))

    @property
    def repeats(self) -> list[dict[str, Any]]:
        """Each repeat's number, `start_ns` since the run's start, and `duration_s`."""
        repeats: list[dict[str, Any]] = self.run["clock"]["repeats"]
        return repeats

    @property
    def start_utc_ns(self) -> int | None:
        """UTC time of the run's start."""
        start: int | None = self.run["clock"].get("run_start_utc_ns")
        return start

    def ns(self, repeat: pd.Series, seconds: pd.Series) -> Int64s:
        """Instants given in seconds since their repeat's start, as ns since the run's start."""
        starts = {r["repeat"]: r["start_ns"] for r in self.repeats}
        unknown = set(repeat.unique()) - set(starts)
        if unknown:
            raise BadInput(f"{self.run_json}: clock.repeats has no repeat {min(unknown)}")
        origin = repeat.map(starts).to_numpy(np.int64)
        return origin + duration_ns(seconds)


def _checked(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The frame, if each row says what it is of and when, in seconds that a run can last."""
    for name in frame.columns:
        if name in _NEVER_NULL and frame[name].isna().any():
            raise BadInput(f"{path}: column '{name}' is null in a row, where a value is due")
        if name.endswith("_s") and (longest := frame[name].abs().max()) > LONGEST_RUN_NS / 1e9:
            raise BadInput(f"{path}: column '{name}' reaches {longest:g} s; no run lasts so long")
    return frame


def duration_ns(seconds: pd.Series) -> Int64s:
    """Seconds as whole ns."""
    return np.rint(seconds.to_numpy(np.float64) * 1e9).astype(np.int64)
