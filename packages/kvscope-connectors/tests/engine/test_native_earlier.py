"""Runs of schema version 4, whose jobs were rows of `transfers`, are read as runs of today."""

import json
from pathlib import Path
from shutil import copytree

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_native_oracles import CASES, WORDS

from kvscope.base.errors import BadInput
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records, read_records
from kvscope.metrics.experiment import analyse
from kvscope.tables import runfile
from kvscope.tables.earlier import ALL_COPIES
from kvscope.tables.verdict import VIOLATED
from kvscope_connectors.table import JOBS
from tests.engine.conftest import directory_of
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def made(warm: Warm) -> Path:
    words = [*WORDS, "overflow.host_blocks=400", *CASES["native_full"]]
    return directory_of(warm, words, "earlier")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return copytree(made, tmp_path / "experiments" / made.name)


def rewrite(run: Path, **facts: object) -> None:
    """Write a run.json that vouches for the files as they are."""
    path = run / "run.json"
    own = json.loads(path.read_text()) | {"files": runfile.file_records(run)}
    path.write_text(json.dumps(own | facts))


def make_old(run: Path) -> None:
    """Rewrite the files of a run as version 4 had them."""
    whole = pd.read_parquet(run / JOBS.table.file).assign(rebuild_s=float("nan"))
    arrow = pa.Table.from_pandas(
        whole[ALL_COPIES.names], schema=ALL_COPIES.schema, preserve_index=False
    )
    named = {"kvscope.table": "transfers", "kvscope.schema_version": "4"}
    pq.write_table(arrow.replace_schema_metadata(named), run / "transfers.parquet")
    (run / JOBS.table.file).unlink()
    rewrite(run, schema=4)


def states(records: Records) -> dict[str, str]:
    return {verdict.name: verdict.state for verdict in judge_tables(records)}


def test_jobs_of_an_earlier_run_are_its_table_of_jobs(run: Path) -> None:
    jobs = read_records(run).jobs
    make_old(run)
    result = read_records(run)
    assert len(jobs) > 10
    assert result.transfers.empty
    pd.testing.assert_frame_equal(result.jobs, jobs)
    pd.testing.assert_frame_equal(result.added(JOBS.table.name), jobs)


def test_an_earlier_run_has_the_metrics_and_verdicts_that_it_had(run: Path, tmp_path: Path) -> None:
    metrics, verdicts = analyse(run, tmp_path / "before"), states(read_records(run))
    make_old(run)
    result = states(read_records(run))
    assert result == verdicts
    assert VIOLATED not in result.values()
    columns = ["metric", "value", "ci_low", "ci_high"]
    again = analyse(run, tmp_path / "after")
    pd.testing.assert_frame_equal(again[columns], metrics[columns])


def test_jobs_of_an_earlier_run_that_were_changed_are_refused(run: Path) -> None:
    make_old(run)
    path = run / "transfers.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(BadInput, match=r"transfers\.parquet"):
        _ = Records(run).jobs


def test_a_run_of_today_needs_its_table_of_jobs(run: Path) -> None:
    (run / JOBS.table.file).unlink()
    rewrite(run)
    verdicts = {verdict.name: verdict for verdict in judge_tables(read_records(run))}
    assert f"whether {JOBS.table.file} is recorded" in verdicts["facts_differ"].first
