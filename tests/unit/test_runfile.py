"""A run's directory through every ending: complete, failed, cut off at any moment."""

import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput, CannotWrite
from kvscope.base.files import atomic_path, make_directory, write_json, write_text
from kvscope.run.attempt import keep_whole_repeats
from kvscope.tables import attempts, runfile
from kvscope.tables.attempts import ATTEMPT, MEASURE_AGAIN
from kvscope.tables.runfile import RUN_DONE, RUN_FILE

ID = "tiny-0123456789"
NAMES = ("experiment.yaml", "requests.parquet", "steps.parquet", "batch.parquet")


def measured(directory: Path, content: str, status: str = "complete", names=NAMES) -> Path:
    """A measurement that ended in attempt/, its files of this content."""
    attempt = attempts.begin_attempt(directory)
    for name in names:
        (attempt / name).write_text(f"{content} {name}")
    (attempt / "log.txt").write_text(content)
    facts: dict[str, Any] = {"experiment_id": ID, "status": status, "reason": None}
    runfile.write_run(attempt, facts | {"files": runfile.file_records(attempt)})
    return directory


def content_of(directory: Path) -> set[str]:
    """The contents of a whole run; fails if it is not whole."""
    record = runfile.read_record(directory)
    assert runfile.file_problems(directory, record) == []
    return {(directory / name).read_text().split()[0] for name in record.files}


def test_a_complete_attempt_takes_its_place_and_run_done_names_it(tmp_path):
    attempts.settle(measured(tmp_path, "old"))
    assert content_of(tmp_path) == {"old"}
    first = (tmp_path / RUN_DONE).read_text()
    assert first == runfile.run_sha256(tmp_path) + "\n"
    assert not (tmp_path / ATTEMPT).exists()
    attempts.request_again(tmp_path)
    attempts.settle(measured(tmp_path, "new"))
    assert content_of(tmp_path) == {"new"}
    assert (tmp_path / RUN_DONE).read_text() != first
    assert not (tmp_path / MEASURE_AGAIN).exists()


def test_a_failed_attempt_does_not_replace_a_complete_run(tmp_path):
    attempts.settle(measured(tmp_path, "broken", status="failed"))
    assert runfile.read_run(tmp_path)["status"] == "failed"
    assert not (tmp_path / RUN_DONE).exists()
    attempts.settle(measured(tmp_path, "good"))
    attempts.request_again(tmp_path)
    attempts.settle(measured(tmp_path, "broken", status="failed"))
    assert content_of(tmp_path) == {"good"}
    assert (tmp_path / RUN_DONE).exists()
    assert attempts.is_requested(tmp_path)
    assert attempts.log_path(tmp_path).read_text() == "broken"


def test_a_file_that_only_the_measurement_before_had_goes(tmp_path):
    attempts.settle(measured(tmp_path, "old", names=(*NAMES, "trace.sqlite")))
    attempts.settle(measured(tmp_path, "new"))
    assert not (tmp_path / "trace.sqlite").exists()


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("moves", range(8))
def test_a_move_that_was_cut_off_is_finished_by_the_next_call(tmp_path, monkeypatch, moves):
    attempts.settle(measured(tmp_path, "old"))
    measured(tmp_path, "new")
    replace, left = Path.replace, iter(range(moves))

    def dying(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dying)
        try:
            attempts.settle(tmp_path)
        except Killed:
            whole = not runfile.file_problems(tmp_path, runfile.read_record(tmp_path))
            assert whole or not runfile.is_complete(tmp_path, ID)
    attempts.settle(tmp_path)
    assert content_of(tmp_path) == {"new"}
    assert (tmp_path / RUN_DONE).read_text() == runfile.run_sha256(tmp_path) + "\n"
    assert not (tmp_path / ATTEMPT).exists()


def test_an_attempt_whose_files_were_moved_is_removed_by_the_next_call(tmp_path):
    """A process was killed while it removed the rest of the attempt; a new attempt is kept."""
    attempts.settle(measured(tmp_path, "good"))
    left = attempts.begin_attempt(tmp_path)
    (left / ".run.lock").touch()
    assert not attempts.is_settled(tmp_path)
    attempts.settle(tmp_path)
    assert not left.exists()
    begun = attempts.begin_attempt(tmp_path)
    (begun / runfile.EXPERIMENT_FILE).write_text("experiment\n")
    assert attempts.is_settled(tmp_path)
    attempts.settle(tmp_path)
    assert begun.exists()
    assert content_of(tmp_path) == {"good"}


def test_a_run_with_a_changed_file_is_not_complete(tmp_path):
    attempts.settle(measured(tmp_path, "good"))
    assert runfile.is_complete(tmp_path, ID)
    assert not runfile.is_complete(tmp_path, "another-0123456789")
    (tmp_path / "steps.parquet").write_text("goop steps.parquet")
    assert not runfile.is_complete(tmp_path, ID)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {},
        {"schema": 99},
        {"experiment_id": "../../../../X"},
        {"experiment_id": None},
        {"status": "fine"},
        {"files": []},
        {"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}},
        {"files": {"steps.parquet": {"bytes": -1, "sha256": "0" * 64}}},
        {"clock": None},
        {"clock": {"repeats": [{"repeat": "0", "start_ns": 0, "duration_s": 1}]}},
        {"clock": {"repeats": [{"repeat": 0, "start_ns": 10**30, "duration_s": 1}]}},
        {"engine": {"block_size": "many"}},
        {"hardware": ["a"]},
        {"recorded": {"draft_tokens": "3"}},
        {"recorded": {"draft_tokens": -1}},
    ],
)
def test_a_record_that_no_run_writes_is_refused_in_one_sentence(tmp_path, facts):
    sound = {"schema": 1, "experiment_id": ID, "status": "complete", "files": {}}
    write_json(tmp_path / RUN_FILE, sound | facts if facts else facts)
    with pytest.raises(BadInput) as error:
        runfile.read_run(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / RUN_FILE}: ")
    assert "\n" not in str(error.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ("schema", "experiment_id", "status", "files", "clock", "engine", "hardware", "warmup")
)


@given(st.dictionaries(KEYS, VALUES))
def test_any_json_is_a_record_or_refused(tmp_path_factory, facts):
    directory = tmp_path_factory.mktemp("run")
    (directory / RUN_FILE).write_text(json.dumps(facts))
    with suppress(BadInput):
        assert runfile.read_run(directory)["files"] is not None


# --- what a killed process leaves


def table_of(directory: Path, table: tables.Table, repeats: int) -> None:
    frame = pd.DataFrame({"repeat": range(repeats)}).reindex(columns=table.names)
    tables.write(table, frame, directory / f"{table.name}.parquet")


def test_the_tables_of_a_killed_process_are_cut_to_the_repeats_that_all_have(tmp_path):
    table_of(tmp_path, tables.REQUESTS, 3)
    table_of(tmp_path, tables.PREEMPTIONS, 2)
    (tmp_path / runfile.KERNEL_EVENTS).write_bytes(b"two frames and a half")
    (tmp_path / ".steps.parquet.x.tmp").touch()
    session = {"clock": {"repeats": [{}, {}]}, "kernel_events_bytes": 10}
    keep_whole_repeats(tmp_path, session)
    for name in ("requests", "preemptions"):
        assert pd.read_parquet(tmp_path / f"{name}.parquet")["repeat"].tolist() == [0, 1]
    assert (tmp_path / runfile.KERNEL_EVENTS).read_bytes() == b"two frames"
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_mark_that_was_being_written_when_its_process_was_killed_leaves_nothing(tmp_path):
    attempts.settle(measured(tmp_path, "good"))
    (tmp_path / RUN_DONE).rename(tmp_path / f".{RUN_DONE}.x1.tmp")
    attempts.settle(tmp_path)
    assert (tmp_path / RUN_DONE).exists()
    assert not list(tmp_path.glob(".*.tmp"))


# --- writing


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask


def write_to_a_full_disk(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        Path("/dev/full").write_text("x")


def test_a_full_disk_is_named_and_leaves_the_old_content(tmp_path):
    write_text(tmp_path / "a", "old")
    with pytest.raises(CannotWrite, match=r"a: cannot be written \(No space left on device\)"):
        write_to_a_full_disk(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_file_where_a_directory_is_needed_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="file: is a file but must be a directory"):
        make_directory(tmp_path / "file")
    with pytest.raises(CannotWrite, match=r"file/a: cannot be written \("):
        write_text(tmp_path / "file" / "a", "x")


@pytest.mark.parametrize("content", ["{", '{"schema": 99}'])
def test_an_attempt_that_cannot_be_read_is_left_and_then_replaced(content, tmp_path):
    attempts.settle(measured(tmp_path, "good"))
    attempt = tmp_path / ATTEMPT
    attempt.mkdir()
    (attempt / RUN_FILE).write_text(content)
    attempts.settle(tmp_path)
    assert content_of(tmp_path) == {"good"}
    assert (tmp_path / RUN_DONE).exists()
    assert not list(attempts.begin_attempt(tmp_path).iterdir())


def test_a_settled_directory_is_known_without_a_change(tmp_path):
    assert attempts.is_settled(tmp_path)
    measured(tmp_path, "good")
    assert not attempts.is_settled(tmp_path)
    attempts.settle(tmp_path)
    assert attempts.is_settled(tmp_path)
    (tmp_path / RUN_DONE).write_text("another\n")
    assert not attempts.is_settled(tmp_path)


@pytest.mark.parametrize("name", [RUN_DONE, MEASURE_AGAIN, "experiment.yaml"])
def test_what_a_process_was_writing_as_it_was_killed_is_removed(name, tmp_path):
    """A process that writes locks its file, which is therefore left alone."""
    attempts.settle(measured(tmp_path, "good"))
    (tmp_path / f".{name}.0123abcd.tmp").touch()
    assert not attempts.is_settled(tmp_path)
    with atomic_path(tmp_path / "experiment.yaml") as temporary:
        attempts.settle(tmp_path)
        assert list(tmp_path.glob(".*.tmp")) == [temporary]
        assert attempts.is_settled(tmp_path)
        temporary.write_text("good experiment.yaml")
    assert content_of(tmp_path) == {"good"}
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_request_stays_until_the_attempt_at_it_is_removed(tmp_path, monkeypatch):
    """A process was killed while it removed the attempt."""
    attempts.settle(measured(tmp_path, "good"))
    attempts.request_again(tmp_path)
    attempts.settle(measured(tmp_path, "bad", "failed"))

    def dying(path: Path) -> None:
        raise Killed

    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(shutil, "rmtree", dying)
        attempts.withdraw_request(tmp_path)
    assert attempts.is_requested(tmp_path)
    attempts.withdraw_request(tmp_path)
    assert not (tmp_path / ATTEMPT).exists()
    assert not attempts.is_requested(tmp_path)
