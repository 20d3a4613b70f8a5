"""Tables: written whole or not at all, and never read as something they are not."""

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import atomic_path, write_text_if_changed
from kvscope.tables import evidence
from kvscope.tables.column import KEY, ROLES, TOLD

LAYER_ROWS = st.lists(
    st.tuples(
        st.integers(0, 9), st.integers(0, 9), st.integers(0, 99), st.floats(0, 1), st.floats(0, 1)
    )
)


COLUMNS = [(table, column) for table in tables.TABLES.values() for column in table.columns]


def test_every_column_has_a_role_and_evidence_by_known_names():
    assert {column.role for _, column in COLUMNS} == set(ROLES)
    assert {word for _, column in COLUMNS for word in column.evidence} <= evidence.ALL


def test_the_words_that_a_text_may_have_stand_in_its_meaning():
    worded = [(column, word) for _, column in COLUMNS for word in column.words]
    assert worded
    assert [(c.name, word) for c, word in worded if f"'{word}'" not in c.meaning] == []


def test_tentative_tokens_and_those_that_are_kept_are_told_of_the_same_runs():
    for table in tables.TABLES.values():
        columns = {column.name: column for column in table.columns}
        for pair in table.tentative:
            tentative, kept = (columns[name] for name in pair)
            assert tentative.role == kept.role == TOLD
            assert (tentative.evidence, tentative.null) == (kept.evidence, kept.null)


@pytest.mark.parametrize("table", tables.HOST_TABLES, ids=lambda table: table.name)
def test_a_row_has_a_key_that_a_run_never_lacks(table):
    keys = [column for column in table.columns if column.role == KEY]
    assert [column.name for column in keys] == table.keys
    assert keys
    assert not any(column.evidence for column in keys)


@given(LAYER_ROWS)
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "layers.parquet"
    frame = pd.DataFrame(rows, columns=tables.LAYERS.names)
    tables.write(tables.LAYERS, frame, path)
    assert list(tables.read(tables.LAYERS, path).itertuples(index=False, name=None)) == rows


def test_an_unknown_column_is_not_written(tmp_path):
    frame = tables.LAYERS.empty().assign(colour=[])
    with pytest.raises(ValueError, match="colour"):
        tables.write(tables.LAYERS, frame, tmp_path / "layers.parquet")


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "layers.parquet"
    tables.write(tables.LAYERS, tables.LAYERS.empty(), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"layers\.parquet: not readable as Parquet"):
        tables.read(tables.LAYERS, path)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"layers\.parquet: no such file"):
        tables.read(tables.LAYERS, tmp_path / "layers.parquet")


def test_a_missing_column_is_named(tmp_path):
    path = tmp_path / "layers.parquet"
    tables.write(tables.LAYERS, tables.LAYERS.empty(), path)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["start_s"]), path)
    with pytest.raises(BadInput, match="column 'start_s' is missing"):
        tables.read(tables.LAYERS, path)


def test_another_schema_version_is_refused(tmp_path):
    path = tmp_path / "layers.parquet"
    tables.write(tables.LAYERS, tables.LAYERS.empty(), path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"kvscope.schema_version": "99"}), path)
    with pytest.raises(BadInput, match="schema version 99, expected 2 or 3 or 4"):
        tables.read(tables.LAYERS, path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unchanged_bytes_keep_their_time(tmp_path):
    path = tmp_path / "a.txt"
    assert write_text_if_changed(path, "same")
    before = path.stat().st_mtime_ns
    assert not write_text_if_changed(path, "same")
    assert path.stat().st_mtime_ns == before
    assert write_text_if_changed(path, "other")
