"""Whatever is edited in what collect and analyse wrote, `kvscope check` notices.

The forger makes every hash fit. The run has all that a run of kvscope alone can have: passes and
preemptions, an nsys export, a trace for Perfetto.
"""

import copy
import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvscope import tables
from kvscope.base.errors import CannotWrite
from kvscope.base.files import write_json
from kvscope.base.scratch import scratch_directory
from kvscope.cli.main import main
from kvscope.collect.collector import collect_run
from kvscope.judge import differences
from kvscope.judge.differences import table_differences, value_differences
from kvscope.metrics.experiment import analyse
from kvscope.report import check_run as check
from kvscope.tables import runfile
from kvscope.tables.accounts import ANALYSED, COLLECTED

from .report_fixture import Fake, write_experiment
from .test_collect_run import profiled

pytestmark = pytest.mark.thorough

STAGES = (COLLECTED, ANALYSED)
TABLES = (*tables.NSYS_TABLES, tables.TIMELINE, tables.METRICS)
KNOWN = "fake"  # what a run of a fake lacks: settings with a hash


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, collected and analysed, and the files of both stages, in again/."""
    return write_results(tmp_path_factory.mktemp("results"), lambda run: {})


def write_results(place: Path, record: Callable[[Path], dict[str, Any]]) -> Path:
    """The directory with the run, to which `record` adds files, and facts that it returns."""
    fake = Fake({"name": KNOWN}, "short, swap", repeats=2)
    run = write_experiment(fake, place)
    profiled(run, offset_ns=123_456)
    for name in ("steps", "layers", "requests", "preemptions"):
        assert not runfile.file_problems(run, runfile.read_record(run)), name
    facts = runfile.read_run(run) | record(run) | {"profiler": {"used": "nsys"}}
    runfile.write_run(run, facts | {"files": runfile.file_records(run)})
    collect_run(run, place / "tables" / fake.id, perfetto=True)
    analyse(run, place / "tables" / fake.id)
    shutil.copytree(place / "tables" / fake.id, place / "again")
    return place


@pytest.fixture
def made(results: Path) -> Iterator[Path]:
    """The directory of the run's tables, as it was once a test is over."""
    (directory,) = (results / "tables").iterdir()
    yield directory
    restore(results)


@pytest.fixture
def quickly(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check computes the same again each time: it is copied."""

    def again(_run: Path, out: Path, **_: Any) -> None:
        shutil.copytree(results / "again", out, dirs_exist_ok=True)

    monkeypatch.setattr(check, "collect_run", again)
    monkeypatch.setattr(check, "analyse", lambda *_, **__: None)


def restore(results: Path) -> None:
    (directory,) = (results / "tables").iterdir()
    shutil.copytree(results / "again", directory, dirs_exist_ok=True)


def run_of(made: Path) -> Path:
    return made.parents[1] / "experiments" / made.name


def found(made: Path, **given: Any) -> list[str]:
    """Complaints about computed files, without the violated oracles of the fake."""
    complaints = check.check_run(run_of(made), **given)
    return [complaint for complaint in complaints if complaint.startswith(f"{made}/")]


def fit_hashes(made: Path) -> None:
    """Make the hashes in both accounts fit the files."""
    for account in STAGES:
        facts = json.loads((made / account).read_text())
        facts["files"] = {name: runfile.file_record(made / name) for name in facts["files"]}
        write_json(made / account, facts)


def test_unforged_runs_are_confirmed(made: Path) -> None:
    assert_confirmed(made, TABLES)


def assert_confirmed(made: Path, present: Iterable[tables.Table]) -> None:
    assert found(made) == []
    assert found(made, quick=True) == []
    for table in present:
        assert pq.read_metadata(made / table.file).num_rows, table.name


def edits(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The table with an edited column, in every row or in a single one, or with other rows."""
    for place, field in enumerate(rows.schema):
        values = rows[field.name].to_pylist()
        last = len(values) - 1
        for what, changed in (
            ("all", [forged(value) for value in values]),
            ("one", [forged(v) if n == last else v for n, v in enumerate(values)]),
            ("null", [None if n == last else value for n, value in enumerate(values)]),
            ("turned", values[::-1]),
        ):
            if changed != values:
                column = pa.array(changed, field.type)
                yield f"{field.name}: {what}", rows.set_column(place, field, column)
    yield "a row left out", rows.slice(1)
    yield "no rows", rows.slice(0, 0)
    yield "a row twice", pa.concat_tables([rows.slice(0, 1), rows])
    yield "rows turned", rows.take(list(reversed(range(rows.num_rows))))
    yield "another column", rows.append_column("more", pa.array([1] * rows.num_rows))


def forged(value: Any) -> Any:
    match value:
        case None:
            return None
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.01
        case str():
            return f"{value}x"
    return [forged(item) for item in value]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_any_edit_of_any_column_is_a_difference(
    table: tables.Table, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "ROWS", 3)  # the last row is in a later slice
    assert unnoticed(results / "again" / table.file, tmp_path / table.file, table) == []


def unnoticed(sound: Path, edited: Path, table: tables.Table) -> list[str]:
    """The edits of a sound table, each written to a file `edited`, that are no difference."""
    assert [*table_differences(sound, sound)] == []
    missed = []
    for what, rows in edits(pq.read_table(sound).cast(table.schema)):  # nulls anywhere
        pq.write_table(rows, edited, compression="none", write_statistics=False)
        complaints = [*table_differences(edited, sound)]
        assert all(
            complaint.startswith(str(edited)) and "\n" not in complaint for complaint in complaints
        )
        if not complaints:
            missed.append(what)
    return missed


@pytest.mark.usefixtures("quickly")
def test_an_account_that_lists_another_stage_s_file_is_told(made: Path) -> None:
    facts = json.loads((made / COLLECTED).read_text())
    facts["files"][tables.METRICS.file] = runfile.file_record(made / tables.METRICS.file)
    write_json(made / COLLECTED, facts)
    (complaint,) = found(made)
    assert "files has metrics.parquet, which is not written" in complaint


@pytest.mark.usefixtures("quickly")
def test_a_table_of_other_types_or_another_version_is_told(made: Path) -> None:
    path = made / tables.GPU_MEMCPYS.file
    rows = pq.read_table(path)
    place = rows.schema.names.index("bytes")
    for forged in (
        rows.set_column(place, "bytes", rows["bytes"].cast(pa.int32())),
        rows.replace_schema_metadata({}),
    ):
        pq.write_table(forged, path)
        fit_hashes(made)
        assert any(complaint.startswith(f"{path}: ") for complaint in found(made))


@pytest.mark.usefixtures("quickly")
def test_check_compares_every_table(made: Path, results: Path) -> None:
    assert_compared(made, results, TABLES)


def assert_compared(made: Path, results: Path, present: Iterable[tables.Table]) -> None:
    for table in present:
        rows = pq.read_table(made / table.file)
        pq.write_table(pa.concat_tables([rows.slice(1), rows.slice(0, 1)]), made / table.file)
        fit_hashes(made)
        assert any(table.file in complaint for complaint in found(made)), table.name
        restore(results)


def places(value: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    """Path to each value of a JSON file."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], *above, key)


def edit(facts: Any, above: tuple[Any, ...], remove: bool) -> Any:
    """The account with one value edited or removed."""
    facts = holder = copy.deepcopy(facts)
    *on_the_way, last = above
    for key in on_the_way:
        holder = holder[key]
    if remove:
        del holder[last]
    elif isinstance(holder[last], dict):
        holder[last]["more"] = 1
    else:
        holder[last] = "x" if holder[last] is None else forged(holder[last]) or [None]
    return facts


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("account", STAGES)
def test_any_edit_of_any_key_of_an_account_is_noticed(account: str, made: Path) -> None:
    assert_edits_noticed(account, made)


def assert_edits_noticed(account: str, made: Path) -> None:
    sound = json.loads((made / account).read_text())
    for above in places(sound):
        for remove in (False, True):
            edited = edit(sound, above, remove)
            assert [*value_differences("", edited, sound)], (above, remove)
            if len(above) == 1 and not remove:
                write_json(made / account, edited)
                assert any(account in complaint for complaint in found(made)), (above, remove)


def write(made: Path, table: tables.Table, frame: pd.DataFrame) -> None:
    tables.write(table, frame, made / table.file)
    fit_hashes(made)


@pytest.mark.usefixtures("quickly")
def test_the_sentence_names_file_column_row_and_both_values(made: Path) -> None:
    frame = tables.read(tables.METRICS, made / "metrics.parquet")
    row = int(frame.index[frame["metric"] == "makespan_s"][0])
    true = frame["value"].tolist()[row]
    frame.at[row, "value"] = 2 * true
    write(made, tables.METRICS, frame)
    assert found(made) == [
        f"{made / 'metrics.parquet'}: value of row {row} (metric makespan_s) is {2 * true!r}, when "
        f"computed again it is {true!r}"
    ]
    assert found(made, quick=True) == []


@pytest.mark.usefixtures("quickly")
def test_other_libraries_and_rounding_are_no_difference(made: Path) -> None:
    """Parquet's bytes are pyarrow's, and the last digit of a sum is the processor's."""
    frame = tables.read(tables.METRICS, made / "metrics.parquet")
    frame["value"] *= 1 + 1e-13
    write(made, tables.METRICS, frame)
    calls = pq.read_table(made / tables.CUDA_API.file)
    pq.write_table(calls, made / tables.CUDA_API.file, compression="none", row_group_size=7)
    fit_hashes(made)
    assert found(made) == []


@pytest.mark.usefixtures("quickly")
def test_a_run_that_was_edited_to_be_valid_is_not(made: Path) -> None:
    facts = json.loads((made / ANALYSED).read_text())
    assert not facts["valid"]
    facts |= {"valid": True, "reasons": []}
    facts["oracles"] = [o | {"state": "held"} for o in facts["oracles"]]
    write_json(made / ANALYSED, facts)
    metrics = tables.read(tables.METRICS, made / "metrics.parquet")
    write(made, tables.METRICS, metrics.assign(valid=True, reasons=""))
    assert found(made, quick=True) == []
    complaints = "\n".join(found(made))
    for key in ("valid is True", "reasons has 0 values", "state is 'held'", "valid of row 0"):
        assert key in complaints


def test_a_trace_for_perfetto_is_compared_with_the_events(made: Path) -> None:
    trace = made / runfile.PERFETTO
    trace.write_bytes(trace.read_bytes().replace(b"gemm", b"gimm"))
    fit_hashes(made)
    assert len(found(made)) == 1
    trace.unlink()
    facts = json.loads((made / COLLECTED).read_text())
    del facts["files"][runfile.PERFETTO]
    write_json(made / COLLECTED, facts)
    assert found(made) == []  # it is written on demand


@pytest.mark.usefixtures("quickly")
def test_a_file_that_run_json_does_not_vouch_for_is_told(made: Path) -> None:
    run = run_of(made)
    before = (run / "run.json").read_bytes()
    facts = runfile.read_run(run)
    del facts["files"]["steps.parquet"]
    runfile.write_run(run, facts)
    assert any("steps.parquet: there, but not recorded" in c for c in check.check_run(run))
    (run / "run.json").write_bytes(before)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("account", STAGES)
def test_tables_that_no_account_lists_are_told(account: str, made: Path) -> None:
    """The account was removed, so nothing vouches for the tables of its stage."""
    (made / account).unlink()
    file = tables.METRICS.file if account == ANALYSED else tables.GPU_KERNELS.file
    assert f"{made / file}: there, but not listed in {account}" in found(made)


@pytest.mark.usefixtures("quickly")
def test_tables_of_another_schema_version_are_told_in_one_sentence(made: Path) -> None:
    facts = json.loads((made / COLLECTED).read_text()) | {"schema": 1}
    write_json(made / COLLECTED, facts)
    (complaint,) = found(made)
    read = f"this kvscope reads {tables.SCHEMA_VERSION}; make it with `kvscope collect"
    assert f"schema version 1, {read}" in complaint


def test_the_command_says_so_and_leaves_no_temporary_files(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    metrics = tables.read(tables.METRICS, made / "metrics.parquet")
    write(made, tables.METRICS, metrics.assign(value=metrics["value"] * 1.3))
    assert main(["check", str(run_of(made)), "--brief"]) == 1
    assert "(metric makespan_s)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(check, "stage_differences", interrupted)
    assert main(["check", str(run_of(made))]) == 1
    assert "interrupted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_room_for_the_tables_is_told_with_the_remedy(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_run: Path, out: Path, **_: Any) -> None:
        raise CannotWrite(out / "gpu_kernels.parquet", OSError(errno.ENOSPC, "full"))

    monkeypatch.setattr(check, "collect_run", full)
    assert main(["check", str(run_of(made))]) == 1
    assert "No space left on device" in (output := capsys.readouterr().err)
    assert output.endswith("or set TMPDIR to a directory with room\n")


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_scratch_directory_goes_when_the_process_is_terminated() -> None:
    scratch: list[Path] = []

    def terminated() -> None:
        with scratch_directory() as directory:
            scratch.append(directory)
            (directory / "file").touch()
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    with pytest.raises(SystemExit):
        terminated()
    assert not scratch[0].exists()
