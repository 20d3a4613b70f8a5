"""Runs of before schema version 3 are read: the copies in their other tables become transfers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records, read_records
from kvscope.metrics.experiment import analyse
from kvscope.tables import earlier, runfile
from kvscope.tables.verdict import VIOLATED

from .report_fixture import Fake, write_experiment

RECORDED = [t for t in tables.HOST_TABLES if t not in tables.OF_PREFIX_CACHE]
KEY = ["repeat", "step", "request_id"]
OLD = pd.DataFrame(
    {"event": ["preempt", "resume"], "direction": ["out", "in"], "own": ["swap_out_s", "swap_in_s"]}
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_experiment(Fake({"kind": "swap"}, "swap"), tmp_path)


def write_as_version_2(table: tables.Table, frame: pd.DataFrame, path: Path) -> None:
    """A file with more columns than the table has, of schema version 2."""
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    known = {field.name: field.type for field in table.schema}
    typed = [pa.field(f.name, known.get(f.name, f.type)) for f in arrow.schema]
    named = {"kvscope.table": table.name, "kvscope.schema_version": "2"}
    pq.write_table(arrow.cast(pa.schema(typed)).replace_schema_metadata(named), path)


def make_old(directory: Path) -> pd.DataFrame:
    """Rewrite a run's files as version 2 had them; returns its transfers."""
    copies = tables.read(tables.TRANSFERS, directory / "transfers.parquet")
    there = (t for t in RECORDED if (directory / t.file).exists())
    frames = {t: tables.read(t, directory / t.file) for t in there}
    lost = frames[tables.PREEMPTIONS].merge(OLD, on="event")
    own = copies[[*KEY, "direction", "bytes", "start_s", "end_s", "copy_s"]]
    lost = lost.merge(own, how="left", on=[*KEY, "direction"])
    for column in OLD["own"]:
        lost[column] = lost["copy_s"].where(lost["own"] == column)
    lost = lost.rename(columns={"start_s": "copy_start_s", "end_s": "copy_end_s"})
    lost = lost.assign(bytes=lost["bytes"].fillna(0).astype("int64"), rebuild_s=np.nan)
    frames[tables.PREEMPTIONS] = lost.drop(columns=["direction", "own", "copy_s"])
    frames[tables.STEPS] = frames[tables.STEPS].assign(saved_bytes=0, save_s=np.nan)
    for table, frame in frames.items():
        write_as_version_2(table, frame, directory / table.file)
    (directory / "transfers.parquet").unlink()
    facts = json.loads((directory / "run.json").read_text())
    facts |= {"schema": 2, "files": runfile.file_records(directory)}
    (directory / "run.json").write_text(json.dumps(facts))
    return copies


def test_copies_of_an_earlier_run_are_those_of_its_preemptions(run: Path) -> None:
    expected = make_old(run).sort_values("start_s", ignore_index=True)
    assert len(expected) > 10
    result = read_records(run).transfers.sort_values("start_s", ignore_index=True)
    pd.testing.assert_frame_equal(result, expected[result.columns])


@pytest.mark.thorough
def test_an_earlier_run_has_the_metrics_and_verdicts_that_it_had(run: Path, tmp_path: Path) -> None:
    def judged(records: Records) -> dict[str, str]:
        return {verdict.name: verdict.state for verdict in judge_tables(records)}

    metrics, verdicts = analyse(run, tmp_path / "before"), judged(read_records(run))
    make_old(run)
    result = judged(read_records(run))
    assert result == verdicts
    assert VIOLATED not in result.values()
    columns = ["metric", "value", "ci_low", "ci_high"]
    again = analyse(run, tmp_path / "after")
    pd.testing.assert_frame_equal(again[columns], metrics[columns])


def test_times_of_copies_that_a_file_lacks_are_null(run: Path) -> None:
    copies = make_old(run)
    path = run / "preemptions.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["copy_start_s", "copy_end_s"]), path)
    result = earlier.read_transfers(run, runfile.read_record(run))
    assert len(result) == len(copies)
    assert result[["start_s", "end_s"]].isna().all(axis=None)


def test_a_run_of_today_needs_its_transfers(run: Path) -> None:
    (run / "transfers.parquet").unlink()
    with pytest.raises(BadInput, match=r"transfers\.parquet"):
        read_records(run)
