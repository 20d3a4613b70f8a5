"""Files that are damaged or hostile: read as sound values, or refused in one sentence."""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base import limits
from kvscope.base.errors import EXIT_BAD_INPUT, BadInput, CannotWrite
from kvscope.base.files import sha256_of
from kvscope.cli import main as cli
from kvscope.collect.collector import collect_nsys
from kvscope.collect.nsys.export import NsysExport
from kvscope.plan import experiment, manifest
from kvscope.plan.grid import expand
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock_if_free
from kvscope.tables import ANALYSIS_TABLES, HOST_TABLES, LAYERS, WORKLOAD, Table, runschema
from kvscope.tables.results import Run
from kvscope.tables.runfile import RUN_FILE, read_run
from kvscope.workload import requests

from .mutations import (
    NO_FILES,
    FileKind,
    altered_json,
    altered_lines,
    damaged,
    joined,
    json_lines,
    nested,
    refusal,
    shuffled,
)
from .nsys_fixture import NsysFile, global_id
from .report_fixture import Fake, facts, write_experiment, write_study
from .test_workload_sharegpt import FITTING, TOO_LONG, word_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

CONFIG = Path(__file__).parents[2] / "config"
SECOND = 1_000_000_000


def made(name: str, write: Callable[[Path], Any]) -> bytes:
    """The content of a file that `write` makes."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


# --- records of kvscope's own

FILES = {"steps.parquet": {"bytes": 1, "sha256": "0" * 64}}
RECORD = {"schema": runschema.VERSION, **facts(Fake({})), "files": FILES}


def planned(*words: str) -> experiment.Experiment:
    (result,) = expand(None, list(words), CONFIG).experiments
    return result.experiment


def read_experiment(path: Path) -> None:
    result = experiment.load(path)
    path.write_text(experiment.dump(result), encoding="utf-8")
    assert experiment.load(path) == result


PATH = f"workload.path={__file__}"  # of any file, for now
TRACE = planned("workload=trace", PATH, "batching=chunked", "overflow=swap")


def manifest_of(path: Path) -> None:
    write_study(path.parent / "results", [Fake({}, status=None)])
    (path.parent / "results" / "studies" / "fake" / "manifest.json").rename(path)


def read_manifest(path: Path) -> None:
    place = path.parent / "studies" / "fake"
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").symlink_to(path)
    manifest.read("fake", path.parent)


MANIFEST = made("manifest.json", manifest_of)

# --- tables

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
TYPES = [pa.int64(), pa.string(), pa.list_(pa.int32()), pa.timestamp("ns"), pa.binary()]
METADATA = [b"\xff", b"", json.dumps({"columns": 3}).encode()]


def parquet(rows: pa.Table) -> bytes:
    return made("t.parquet", lambda path: pq.write_table(rows, path))


def retyped(rows: pa.Table, name: str, type_: pa.DataType) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, pa.nulls(len(rows), type_))


def no_utf_8() -> pa.Table:
    """The table of REQUESTS, the first id of which is no UTF-8."""
    rows = tables.to_arrow(WORKLOAD, REQUESTS)
    raw = pa.StringArray.from_buffers(2, *pa.array([b"\xff\xff", b"ok"]).buffers()[1:])
    return rows.set_column(0, rows.schema.field(0), raw)


def doubled(rows: pa.Table, name: str) -> pa.Table:
    return rows.append_column(rows.schema.field(name), rows[name])


@st.composite
def other_columns(draw: st.DrawFn, rows: pa.Table) -> bytes:
    """The table with a column of another type, left out, doubled or added, or other metadata."""
    name = draw(st.sampled_from(rows.column_names))
    match draw(st.sampled_from(["type", "type", "drop", "double", "add", "metadata"])):
        case "type":
            rows = retyped(rows, name, draw(st.sampled_from(TYPES)))
        case "drop":
            rows = rows.drop_columns([name])
        case "double":
            rows = doubled(rows, name)
        case "add":
            rows = rows.append_column("of a later version", pa.nulls(len(rows)))
        case "metadata":
            key = draw(st.sampled_from(["pandas", "kvscope.schema_version", "ARROW:schema"]))
            other = {**rows.schema.metadata, key: draw(st.sampled_from(METADATA))}
            rows = rows.replace_schema_metadata(other)
    return parquet(rows)


def table_kind(table: Table, frame: pd.DataFrame) -> FileKind:
    def read(path: Path) -> None:
        found = tables.read(table, path)
        tables.to_arrow(table, found[table.names])

    rows = tables.to_arrow(table, frame)
    return FileKind(table.file, parquet(rows), read, (other_columns(rows),))


# --- exports of Nsight Systems

PROCESS, THREAD = global_id(7), global_id(7, 70)
NSYS_TABLES = (tables.NVTX_RANGES, tables.CUDA_API, tables.GPU_KERNELS, tables.GPU_MEMCPYS)
PAGE_BYTES = 4096


def small_export(path: Path) -> Path:
    """An export with a few rows of everything that is read, in columns that take any value."""
    file = NsysFile(path)
    own = file.kvscope(THREAD)
    own("repeat", 0, 900, 0)
    own("forward pass", 10, 800, 3)
    file.domain("library", 2, THREAD)
    file.range("a range", 20, 700, THREAD, domainId=2, doubleValue=0.5)
    file.range("another", 30, None, THREAD, uint64Value=5)
    file.range("start/end", 5, 950, THREAD, kind=60, registered=True)
    for number in range(12):
        file.call(100 + 10 * number, 105 + 10 * number, THREAD, number)
        file.kernel(200 + 10 * number, 205 + 10 * number, PROCESS, number)
        file.copy(400 + 10 * number, 405 + 10 * number, PROCESS, number)
    file.insert("DIAGNOSTIC_EVENT", severity=2, text="some events were lost", timestamp=1)
    file.sql.execute("PRAGMA writable_schema = ON")
    file.sql.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
    return file.close()


EXPORT = made("trace.sqlite", small_export)


def read_export(path: Path) -> None:
    out = path.parent / "out"
    try:
        account = collect_nsys(path, out)
    except BadInput:
        assert not (out / "collect.json").exists()
        raise
    for table in NSYS_TABLES:
        rows = pq.read_table(out / f"{table.name}.parquet")
        rows.validate(full=True)
        assert rows.schema.equals(table.schema)
        assert len(rows) == account["rows"][table.name]
        assert rows["start_ns"].null_count == rows["end_ns"].null_count == 0
    assert all(len(warning) < 1000 for warning in account["warnings"])
    json.dumps(account, allow_nan=False)


def in_sql(*statements: tuple[str, tuple[Any, ...]]) -> bytes:
    """The export after these statements, each with its values."""

    def write(path: Path) -> None:
        path.write_bytes(EXPORT)
        with closing(sqlite3.connect(path)) as sql, sql:
            for statement, values in statements:
                sql.execute(statement, values)

    return made("trace.sqlite", write)


def cell(table: str, column: str, value: Any, row: int = 1) -> bytes:
    """The export with another value in one cell."""
    return in_sql((f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (value, row)))


def cells() -> list[tuple[str, str, int]]:
    """Table, column and row of every cell."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "trace.sqlite").write_bytes(EXPORT)
        with closing(sqlite3.connect(Path(folder) / "trace.sqlite")) as sql:
            names = [name for (name,) in sql.execute("SELECT name FROM sqlite_master")]
            return [
                (table, row[1], rowid)
                for table in names
                for row in sql.execute(f"PRAGMA table_info({table})")
                for (rowid,) in sql.execute(f"SELECT rowid FROM {table} LIMIT 6")
            ]


HUGE = [2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1]
CELL_VALUES = st.one_of(
    st.sampled_from([None, 0.5, float("inf"), 1e300, -0.0, *HUGE, *(-number for number in HUGE)]),
    st.sampled_from(["", "text", "12", b"", b"\xff\xfe\x00", "x" * 100_000, "\0", "a\nb"]),
    st.integers(-2, 100),
)
PAGES = st.integers(1, len(EXPORT) // PAGE_BYTES - 1)
FILLINGS = st.one_of(
    st.just(bytes(PAGE_BYTES)),
    st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).bytes(PAGE_BYTES)),
    PAGES.map(lambda page: EXPORT[page * PAGE_BYTES :][:PAGE_BYTES]),
)


def with_page(page: int, filling: bytes) -> bytes:
    """The export with a page replaced by another."""
    return EXPORT[: page * PAGE_BYTES] + filling + EXPORT[(page + 1) * PAGE_BYTES :]


VIEW = (
    "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
    "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS 'end' FROM n"
)

# --- files of workloads

ROWS = [
    {"timestamp": 27_000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 30_000, "input_length": 10, "output_length": 26},
    {"timestamp": 30_500, "input_length": 300, "output_length": 1},
]
CSV = ["prompt_tokens,output_tokens,arrival_s", "600,52,27", "10,26,30", "300,1,30.5"]
SHAREGPT = [*FITTING[:3], TOO_LONG]
CONVERSATIONS = planned("workload=sharegpt", "workload.num_requests=2", PATH)


def served(of: experiment.Experiment) -> Callable[[Path], None]:
    """A reader of the file of an experiment's workload."""

    def read(path: Path) -> None:
        workload = of.workload.model_copy(update={"path": str(path), "sha256": digest(path)})
        check_requests(of.model_copy(update={"workload": workload}))

    return read


def digest(path: Path) -> str:
    """Stands for the SHA-256 of a file that may be none."""
    return sha256_of(path) if path.is_file() else "0" * 64


def check_requests(of: experiment.Experiment) -> None:
    requests.check(of)
    built = requests.build(of)
    assert built
    longest = of.engine.max_model_len
    assert all(len(r.prompt_token_ids) + r.output_tokens <= longest for r in built)
    assert all(len(r.prompt_token_ids) >= 1 and r.output_tokens >= 1 for r in built)
    arrivals = [request.arrival_s or 0 for request in built]
    assert arrivals == sorted(arrivals)
    assert 0 <= arrivals[-1] <= limits.LATEST_EPOCH_S


def tokenized(path: Path) -> None:
    """Count the tokens of conversations by this tokenizer.json."""
    conversations = path.with_name("s.json")
    update = {"path": str(conversations), "sha256": sha256_of(conversations)}
    update |= {"tokenizer": str(path), "tokenizer_sha256": digest(path)}
    workload = CONVERSATIONS.workload.model_copy(update=update)
    check_requests(CONVERSATIONS.model_copy(update={"workload": workload}))


TOKENIZER = made("tokenizer.json", word_tokenizer)


def line(**changes: Any) -> bytes:
    """A trace whose second line has these changes."""
    sound = {"timestamp": 1, "input_length": 5, "output_length": 5}
    return json_lines([sound, sound | changes])


# --- every kind of file

KINDS = {
    kind.name: kind
    for kind in (
        FileKind(
            RUN_FILE,
            json.dumps(RECORD).encode(),
            lambda path: read_run(path.parent),
            (altered_json(RECORD),),
        ),
        FileKind(
            "experiment.yaml",
            experiment.dump(TRACE).encode(),
            read_experiment,
            (altered_json(TRACE.to_dict()),),
        ),
        FileKind("manifest.json", MANIFEST, read_manifest, (altered_json(json.loads(MANIFEST)),)),
        table_kind(LAYERS, LAYER_ROWS),
        table_kind(WORKLOAD, REQUESTS),
        FileKind(
            "trace.sqlite",
            EXPORT,
            read_export,
            (
                st.builds(with_page, PAGES, FILLINGS),
                st.tuples(st.sampled_from(cells()), CELL_VALUES).map(
                    lambda found: cell(found[0][0], found[0][1], found[1], found[0][2])
                ),
            ),
        ),
        FileKind("t.jsonl", json_lines(ROWS), served(TRACE), (altered_lines(ROWS),)),
        FileKind(
            "t.csv", joined(*CSV), served(TRACE), (shuffled(CSV).map(lambda found: joined(*found)),)
        ),
        FileKind(
            "s.json",
            json.dumps(SHAREGPT).encode(),
            served(CONVERSATIONS),
            (altered_json(SHAREGPT),),
        ),
        FileKind(
            "tokenizer.json",
            TOKENIZER,
            tokenized,
            (altered_json(json.loads(TOKENIZER)),),
            {"s.json": json.dumps(SHAREGPT).encode()},
        ),
    )
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@given(data=st.data())
@settings(max_examples=40)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(
    kind: FileKind, data: st.DataObject
) -> None:
    kind.refusal(data.draw(kind.contents))


REFUSED = [
    *[
        (RUN_FILE, content, "run.json: not readable as JSON")
        for content in (nested(200_000), '{"a":' * 200_000, "1" * 5000, "\xff", "")
    ],
    (RUN_FILE, " " * (limits.LONGEST_JSON_BYTES + 1), "run.json: more than 67,108,864 bytes"),
    (RUN_FILE, json.dumps(RECORD | {"status": "asleep"}), "run.json: not the record of a run"),
    (RUN_FILE, json.dumps(RECORD | {"files": {"../x": FILES["steps.parquet"]}}), "files"),
    ("manifest.json", json.dumps({"study": "fake"}), "manifest lacks the key"),
    ("experiment.yaml", "a: &a [1]\n" + "b: " + "[" * 60 + "]" * 60, "nested more than 50"),
    ("experiment.yaml", "seed: 1\nseed: 2", "key 'seed' is given twice"),
    (LAYERS.file, b"", "layers.parquet: not readable as Parquet"),
    *[
        (LAYERS.file, parquet(retyped(tables.to_arrow(LAYERS, LAYER_ROWS), name, type_)), wrong)
        for name, type_ in zip(LAYERS.names, TYPES, strict=True)
        for wrong in [f"layers.parquet: column '{name}' has type"]
    ],
    (
        LAYERS.file,
        parquet(doubled(tables.to_arrow(LAYERS, LAYER_ROWS), "step")),
        "'step' is there 2",
    ),
    (WORKLOAD.file, parquet(no_utf_8()), "workload.parquet: not readable as Parquet"),
    ("trace.sqlite", EXPORT[:-PAGE_BYTES], "trace.sqlite: truncated, "),
    *[
        ("trace.sqlite", partial(cell, table, column, value), f"table {table}: column '{column}'")
        for table, column, value in [
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "start", "text"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", b"\x00"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", -(2**63)),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "gridX", 0.5),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "gridY", 2**40),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "start", 2**62),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "start", None),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes", "text"),
            ("StringIds", "id", "text"),
            ("ANALYSIS_DETAILS", "duration", 2**62),
            ("ANALYSIS_DETAILS", "duration", "text"),
            ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", 0.5),
        ]
    ],
    ("t.jsonl", joined("{}"), "t.jsonl:1: input_length is None"),
    ("t.jsonl", joined(nested(200_000)), "t.jsonl:1: not a JSON object"),
    ("t.jsonl", joined('{"input_length": 1' + "0" * 5000 + "}"), "t.jsonl:1: not a JSON object"),
    ("t.jsonl", line(input_length=10**12), "t.jsonl:2: input_length is 1000000000000"),
    ("t.jsonl", line(input_length="9" * 5000), "t.jsonl:2: input_length is '999"),
    ("t.jsonl", line(timestamp=10**400), "t.jsonl:2: timestamp is 1000"),
    ("t.jsonl", line(timestamp=1e300), "t.jsonl:2: timestamp is 1e+300"),
    ("t.jsonl", line(timestamp=float("nan")), "t.jsonl:2: timestamp is nan"),
    ("t.jsonl", line(hash_ids=[1] * 10**6), "t.jsonl:2: longer than 1,048,576 bytes"),
    ("t.jsonl", b"\xff\n", "t.jsonl: cannot be read as text"),
    *[
        ("t.csv", joined("prompt_tokens,output_tokens", f"5,{number}"), "t.csv")
        for number in ("9" * 5000, "1e400", "nan", "x" * 200_000, "\0")
    ],
    ("s.json", nested(200_000), "s.json: not readable as JSON"),
    ("s.json", '[{"conversations": [{"value": 1}, {"value": 2}]}]', "conversation 0 must have"),
    ("s.json", '[{"conversations": [{"value": null}, {}]}]', "conversation 0 must have"),
    ("tokenizer.json", b"\xff\xfe", "must be a tokenizer.json"),
    ("tokenizer.json", TOKENIZER.replace(b"[UNK]", b"word", 1), "must be a tokenizer.json"),
]


@pytest.mark.parametrize(("name", "content", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_a_file_is_refused_by_name_and_reason(name: str, content: Any, words: str) -> None:
    content = content() if callable(content) else content
    content = content.encode("latin-1") if isinstance(content, str) else content
    assert words in (KINDS[name].refusal(content) or "")


def test_names_of_an_export_that_are_no_utf_8_are_read() -> None:
    for table, column in (("StringIds", "value"), ("NVTX_EVENTS", "text")):
        assert KINDS["trace.sqlite"].refusal(cell(table, column, b"\xff\xfe", row=5)) is None


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_sound_file_is_read_also_by_a_link(kind: FileKind, tmp_path: Path) -> None:
    assert kind.refusal(kind.sound) is None
    assert kind.refusal_by_a_link(tmp_path) is None


@pytest.mark.timeout(60)  # opening a named pipe waits for a writer
@pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_path_that_is_no_file_is_refused(
    kind: FileKind, make: Callable[[Path], Any], tmp_path: Path
) -> None:
    assert kind.refusal_of_no_file(make, tmp_path)


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_sqlite_opens_no_named_pipe_beside_an_export(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "e.sqlite").write_bytes(EXPORT)
    os.mkfifo(tmp_path / f"e.sqlite{suffix}")
    with pytest.raises(BadInput, match=f"e.sqlite{suffix}: not a regular file"):
        NsysExport(tmp_path / "e.sqlite")


def test_a_lock_that_is_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SUPERVISOR_LOCK)
    with pytest.raises(CannotWrite, match=SUPERVISOR_LOCK):
        hold_lock_if_free(tmp_path, SUPERVISOR_LOCK).__enter__()


def test_a_view_without_end_is_no_table_of_an_export(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(in_sql(("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", ()), (VIEW, ())))
    assert collect_nsys(path, tmp_path / "out")["rows"]["gpu_kernels"] == 0


# --- bounded memory


def test_more_rows_than_a_file_can_hold_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes of a page may stand for a billion equal values."""
    monkeypatch.setattr(limits, "MOST_ROWS_PER_BYTE", 10)
    monkeypatch.setattr(limits, "FREE_ROWS", 1000)
    path = tmp_path / "layers.parquet"
    one = tables.to_arrow(LAYERS, LAYER_ROWS.head(1))
    pq.write_table(one.take(pa.array(np.zeros(400_000, np.int64))), path)
    with pytest.raises(BadInput, match=r"layers.parquet: 400,000 rows in \S+ bytes"):
        tables.read(LAYERS, path)


# --- a run, whose record has the hash of each file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was analysed."""
    fake = Fake({}, "short", repeats=1)
    return Run(write_experiment(fake, tmp_path_factory.mktemp("results")))


@given(data=st.data())
def test_a_changed_file_of_a_run_gives_the_same_table_or_is_named(
    data: st.DataObject, run: Run
) -> None:
    present = [table for table in (*HOST_TABLES, *ANALYSIS_TABLES) if run.path(table).exists()]
    table = data.draw(st.sampled_from(present))
    path, before = run.path(table), run.read(table)
    sound = path.read_bytes()
    path.write_bytes(data.draw(damaged(sound)))
    try:
        refusal(lambda _: pd.testing.assert_frame_equal(run.read(table), before), path)
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize("name", [RUN_FILE, "steps.parquet", "requests.parquet"])
def test_a_command_says_it_in_a_line(
    name: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = shutil.copytree(run.directory, tmp_path / "run")
    (changed / name).write_bytes(b"\xff")
    assert cli.main(["analyse", str(changed)]) == EXIT_BAD_INPUT
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert name in output
