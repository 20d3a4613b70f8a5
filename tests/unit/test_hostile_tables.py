"""Tables' files that are damaged or hostile: a frame of the table's types, or one sentence."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import limits, tables
from kvscope.errors import BadInput
from kvscope.tables import LAYERS, WORKLOAD, Table

from .mutations import damaged, is_a_sentence

pytestmark = pytest.mark.thorough

LAYER_ROWS = pd.DataFrame(
    {
        "repeat": 0,
        "step": np.arange(60) // 4,
        "layer": np.arange(60) % 4,
        "start_s": np.linspace(0, 1, 60),
        "duration_s": 0.01,
    }
)
REQUESTS = pd.DataFrame(
    {
        "request_id": ["0", "é"],
        "arrival_s": [0.0, 1.5],
        "prompt_tokens": [2, 3],
        "output_tokens": [1, 1],
        "prompt_token_ids": [[1, 2], [3, 4, 5]],
    }
)


def content(table: Table, frame: pd.DataFrame) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tables.write(table, frame, Path(folder) / "t.parquet")
        return (Path(folder) / "t.parquet").read_bytes()


FILES = [(LAYERS, content(LAYERS, LAYER_ROWS)), (WORKLOAD, content(WORKLOAD, REQUESTS))]


@given(st.sampled_from(FILES).flatmap(lambda f: st.tuples(st.just(f[0]), damaged(f[1]))))
def test_a_damaged_file_is_a_table_or_refused(file: tuple[Table, bytes]) -> None:
    table, changed = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        path.write_bytes(changed)
        try:
            frame = tables.read(table, path)
        except BadInput as refusal:
            is_a_sentence(refusal, path)
            return
        assert set(table.names) <= set(frame.columns)
        tables.to_arrow(table, frame[table.names])


OTHER_TYPES = [pa.int64(), pa.string(), pa.list_(pa.int32()), pa.timestamp("ns"), pa.binary()]


@pytest.mark.parametrize("type_", OTHER_TYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS.names)
def test_a_column_of_another_type_is_named(tmp_path: Path, name: str, type_: pa.DataType) -> None:
    rows = tables.to_arrow(LAYERS, LAYER_ROWS)
    place = rows.column_names.index(name)
    path = tmp_path / "layers.parquet"
    pq.write_table(rows.set_column(place, name, pa.nulls(len(rows), type_)), path)
    with pytest.raises(BadInput, match=f"layers.parquet: column '{name}' has type"):
        tables.read(LAYERS, path)


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    rows = tables.to_arrow(LAYERS, LAYER_ROWS)
    path = tmp_path / "layers.parquet"
    pq.write_table(rows.append_column(rows.schema.field("step"), rows["step"]), path)
    with pytest.raises(BadInput, match=r"layers.parquet: column 'step' is there 2 times"):
        tables.read(LAYERS, path)


@pytest.mark.parametrize("metadata", [b"\xff", b"", json.dumps({"columns": 3}).encode()])
@pytest.mark.parametrize("key", ["pandas", "kvscope.schema_version", "ARROW:schema"])
def test_metadata_of_any_kind_does_no_harm(tmp_path: Path, key: str, metadata: bytes) -> None:
    rows = tables.to_arrow(LAYERS, LAYER_ROWS)
    path = tmp_path / "layers.parquet"
    pq.write_table(rows.replace_schema_metadata({**rows.schema.metadata, key: metadata}), path)
    try:
        assert len(tables.read(LAYERS, path)) == len(LAYER_ROWS)
    except BadInput as refusal:
        is_a_sentence(refusal, path)


def test_texts_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    rows = tables.to_arrow(WORKLOAD, REQUESTS)
    raw = pa.StringArray.from_buffers(2, *pa.array([b"\xff\xff", b"ok"]).buffers()[1:])
    path = tmp_path / "workload.parquet"
    pq.write_table(rows.set_column(0, rows.schema.field(0), raw), path)
    with pytest.raises(BadInput, match=r"workload.parquet: not a readable Parquet file"):
        tables.read(WORKLOAD, path)


def test_more_rows_than_a_file_can_hold_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes of a page may stand for a billion equal values."""
    monkeypatch.setattr(limits, "MOST_ROWS_PER_BYTE", 10)
    path = tmp_path / "layers.parquet"
    one = tables.to_arrow(LAYERS, LAYER_ROWS.head(1))
    pq.write_table(one.take(pa.array(np.zeros(4_000_000, np.int64))), path)
    with pytest.raises(BadInput, match=r"layers.parquet: 4,000,000 rows in \S+ bytes"):
        tables.read(LAYERS, path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a regular file"):
        tables.read(LAYERS, tmp_path)
