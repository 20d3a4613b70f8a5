"""Runs of earlier schema versions, read as runs of today: their evidence, and their copies.

Before version 5, copies beside the passes were rows of `transfers`. Before version 4, run.json did
not list evidence. Before version 3, copies were columns of other tables.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from kvscope import tables
from kvscope.tables import evidence, jobs
from kvscope.tables.column import ROWS
from kvscope.tables.copies import IN, INPUTS, KV, OUT, clock_of
from kvscope.tables.runschema import TRANSFERS, RunRecord

OF_A_COPY = {"swap_out_s": OUT, "swap_in_s": IN}
"""Columns of `preemptions` that had the seconds of a copy."""
ALL_COPIES = replace(
    tables.TRANSFERS,
    columns=(
        *tables.TRANSFERS.columns,
        *(
            replace(column, null=ROWS)
            for column in jobs.COLUMNS
            if column.name not in tables.TRANSFERS.names
        ),
    ),
)
"""The table `transfers` of versions 3 and 4, which had jobs among its rows."""


def evidence_of(directory: Path, record: RunRecord) -> frozenset[str]:
    """The evidence that the run in `directory` has, whose run.json (`record`) does not list it.

    Published files gave what an import found, and no evidence.
    """
    if record.imported_from:
        return frozenset()
    if record.recorded:
        return evidence.of_recording(record.recorded.as_written()) - _not_recorded(directory)
    lacking = _not_recorded(directory)
    if tables.KV_GROUPS.file not in record.files:
        lacking.add(evidence.KV_GROUPS)
    if record.schema_version < TRANSFERS and _lack_times(read_copies(directory, record)):
        lacking.add(evidence.COPIES)
    return evidence.ALL - lacking


def _lack_times(copies: pd.DataFrame) -> bool:
    return bool(copies[["blocks", "start_s", "end_s"]].isna().any(axis=None))


def _not_recorded(directory: Path) -> set[str]:
    """Evidence for which the tables of a run lack the columns, which are younger than the run."""
    lacking = set()
    batch = _names(directory / tables.BATCH.file)
    if "saved_tokens" not in batch:
        lacking.add(evidence.HOST_POOL)
    if "hit_tokens" not in batch:
        lacking.add(evidence.PREFIXES)
    if "loaded_tokens" not in batch or "load_wait_s" not in _names(directory / tables.STEPS.file):
        lacking.add(evidence.JOBS)
    return lacking


def _names(path: Path) -> list[str]:
    """The columns of a table's file; none if it is not there."""
    if not path.exists():
        return []
    with tables.reading(path):
        names: list[str] = pq.read_schema(path).names
    return names


def read_transfers(directory: Path, record: RunRecord) -> pd.DataFrame:
    """The table `transfers` of the run in `directory`, which has this `record`."""
    rows = read_copies(directory, record)
    return rows[rows["job"].isna()][tables.TRANSFERS.names].reset_index(drop=True)


def read_jobs(directory: Path, record: RunRecord) -> pd.DataFrame:
    """Its table of jobs."""
    rows = read_copies(directory, record)
    columns = rows[rows["job"].notna()][jobs.JOBS.names].reset_index(drop=True)
    return columns.astype({"job": "int64"})


def read_copies(directory: Path, record: RunRecord) -> pd.DataFrame:
    """All copies of the run, those that were jobs with a number in `job`.

    Before version 3 it was not recorded when activations were saved, and in how many blocks: it is
    null, as is what the file has no column for.
    """
    if record.schema_version >= TRANSFERS:
        path = directory / tables.TRANSFERS.file
        return tables.read(ALL_COPIES, path) if path.exists() else ALL_COPIES.empty()
    parts = [
        _of_preemptions(_columns(directory / tables.PREEMPTIONS.file), record.engine.block_size),
        _of_steps(_columns(directory / tables.STEPS.file)),
    ]
    frame = pd.concat([part for part in parts if len(part)] or [ALL_COPIES.empty()])
    frame = frame.assign(clock=clock_of(record), time_source=record.time_source)
    frame = frame.sort_values(["repeat", "step", "start_s"], ignore_index=True)
    typed: pd.DataFrame = tables.to_arrow(ALL_COPIES, frame).to_pandas()
    return typed


def _columns(path: Path) -> pd.DataFrame:
    """All columns of a table's file; no columns without the file."""
    if not path.exists():
        return pd.DataFrame()
    with tables.reading(path):
        frame: pd.DataFrame = pq.read_table(path).to_pandas(ignore_metadata=True)
    return frame


def _of_preemptions(rows: pd.DataFrame, block_size: int) -> pd.DataFrame:
    """A copy for each row that has the time of a copy."""
    if not {"bytes", *OF_A_COPY} <= {*rows}:
        return pd.DataFrame()
    copy_s = rows["swap_out_s"].fillna(rows["swap_in_s"])
    rebuild_s = rows["rebuild_s"].astype(float) if "rebuild_s" in rows else np.nan
    rows = rows.assign(copy_s=copy_s, rebuild_s=rebuild_s)[copy_s.notna()]
    blocks = -(-rows["tokens"] // block_size) if block_size else rows["blocks"]
    return pd.DataFrame(
        {
            **{name: rows[name] for name in ("repeat", "step", "request_id")},
            "direction": np.where(rows["swap_out_s"].notna(), OUT, IN),
            "kind": np.where(rows["rebuild_s"].notna(), INPUTS, KV),
            "blocks": blocks,
            "bytes": rows["bytes"],
            "start_s": rows.get("copy_start_s"),
            "end_s": rows.get("copy_end_s"),
            **{name: rows[name] for name in ("copy_s", "rebuild_s")},
        }
    )


def _of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """A copy for each pass that wrote activations through."""
    if "save_s" not in steps or steps["save_s"].isna().all():
        return pd.DataFrame()
    saved = steps[steps["save_s"].notna()]
    values = {"copy_s": saved["save_s"], "bytes": saved["saved_bytes"]}
    copies = saved[["repeat", "step"]].assign(direction=OUT, kind=INPUTS, **values)
    return copies.reindex(columns=tables.TRANSFERS.names)
