"""A run's and a study's results as a library reads them: whole, of one repeat, never stale."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import kvscope
from kvscope import tables
from kvscope.base import layout
from kvscope.base.errors import BadInput
from kvscope.collect.collector import collect_run
from kvscope.report.load import load as load_for_report
from kvscope.report.tables import write_tables
from kvscope.tables import runfile
from kvscope.tables.accounts import StaleResult

from .report_fixture import Fake, write_study

FAKES = [
    Fake({"cache.blocks": 64}),
    Fake({"cache.blocks": 16}, "recompute"),
    Fake({"cache.blocks": 2}, status=None),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("results"), FAKES, "small")


@pytest.fixture
def directory(results: Path) -> Path:
    return layout.experiment_directory(results, FAKES[0].id)


def test_every_table_of_a_run_has_the_columns_of_its_schema(directory: Path) -> None:
    collect_run(directory, layout.tables_directory(directory))
    run = kvscope.load(directory)
    for table in (*tables.HOST_TABLES, *tables.NSYS_TABLES, tables.TIMELINE, tables.METRICS):
        assert list(getattr(run, table.name).columns) == table.names, table.name


def test_a_view_of_a_repeat_has_the_rows_of_that_repeat(directory: Path) -> None:
    run = kvscope.load(directory)
    views = list(run.repeats())
    assert [view.repeat for view in views] == [0, 1, 2]
    assert pd.concat([view.steps for view in views]).equals(run.steps)
    assert {*views[1].requests["repeat"]} == {1}
    assert views[1].workload.equals(run.workload)
    assert views[2].whole is run


def test_a_view_has_the_rows_of_its_repeat_wherever_they_are(directory: Path) -> None:
    run = kvscope.load(directory)
    mixed = run.steps.sort_values(["step", "repeat"])
    for view in run.variant(steps=mixed).repeats():
        assert view.steps.equals(mixed[mixed["repeat"] == view.repeat])
    assert run.of_repeat(9).steps.empty


def test_a_table_that_changed_is_refused(directory: Path) -> None:
    path = directory / tables.STEPS.file
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    try:
        with pytest.raises(BadInput, match=r"steps\.parquet: .* the file was cut or changed"):
            _ = kvscope.load(directory).steps
    finally:
        path.write_bytes(content)


def test_metrics_of_another_measurement_are_refused(directory: Path, results: Path) -> None:
    study = kvscope.study("small", results)
    with pytest.raises(BadInput, match="make it with `kvscope report small"):
        _ = study.metrics
    write_tables(load_for_report(["small"], results), study.directory / layout.UNFINISHED)
    assert {*study.metrics["experiment_id"]} == {fake.id for fake in FAKES if fake.status}
    assert {*study.comparisons["base"]} <= {*study.metrics["experiment_id"]}
    known = study.comparisons.dropna(subset="ratio")
    assert (known["low"] <= known["ratio"]).all()
    before = (directory / runfile.RUN_FILE).read_text()
    runfile.write_run(directory, runfile.read_run(directory) | {"reason": "measured again"})
    try:
        with pytest.raises(StaleResult, match="another measurement"):
            _ = kvscope.load(directory).metrics
        with pytest.raises(StaleResult, match="another measurement"):
            _ = kvscope.study("small", results).metrics
    finally:
        (directory / runfile.RUN_FILE).write_text(before)


def test_a_study_names_its_experiments_and_their_runs(results: Path) -> None:
    study = kvscope.study("small", results)
    assert list(study.experiments.index) == [fake.id for fake in FAKES] == list(study.runs)
    assert list(study.experiments["cache.blocks"]) == [64, 16, 2]
    with pytest.raises(BadInput, match=r"run\.json: no such file"):
        _ = study.runs[FAKES[2].id].steps


def test_missing_results_are_named_with_their_remedy(results: Path, directory: Path) -> None:
    with pytest.raises(BadInput, match="planned studies are small"):
        _ = kvscope.study("smal", results).experiments
    with pytest.raises(BadInput, match="must be a name"):
        kvscope.study("../small", results)
    collect_run(directory, layout.tables_directory(directory))
    with pytest.raises(BadInput, match=r"kv_events\.parquet: not in the account"):
        _ = kvscope.load(directory).kv_events


def test_importing_the_library_loads_no_pandas() -> None:
    program = "import sys, kvscope; kvscope.load; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
