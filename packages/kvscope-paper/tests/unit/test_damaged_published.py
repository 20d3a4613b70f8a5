"""Published series and traces that are damaged or hostile: a run's directory, or one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_traces import Artifact

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.collect.importer import import_run
from kvscope.tables.runfile import RUN_FILE, read_run
from kvscope_paper.unboxkv import sizes
from tests.unit.mutations import (
    VALUES,
    FileKind,
    altered_lines,
    joined,
    json_lines,
    nested,
    shuffled,
)

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

STEPS = """\
step_id,dur(ms),running_reqs,resumed_reqs,raw_running
1,100.5,2,0,2
2,30.1,3,0,2
3,200.0,2,0,2
4,31.5,3,1,2
"""
STATS = """\
Time elapsed (ms),Avg throughput (tokens/s),Running (reqs),Swapped (reqs),Pending (reqs),\
GPU KV cache usage (%),CPU KV cache usage (%)
0,0,0,0,0,0,0
110.2,12000.0,2,0,1,50.1,0.0
145.0,90.5,2,1,1,95.2,10.0
350.0,9.8,2,1,1,90.0,10.0
390.0,75.0,3,0,0,99.9,0.0
"""
RECORDS = Artifact([20, 5], layers=1, steps=3).serve()
WRITES, READS = RECORDS.writes, RECORDS.reads


KINDS = {"csv": "unboxkv-series", "json": "unboxkv-trace"}


def imported(path: Path) -> None:
    """Import the files beside a published file, and it."""
    run = path.parent / "run"
    try:
        import_run(KINDS[path.suffix[1:]], sorted(path.parent.glob(f"*{path.suffix}")), run)
    except BadInput:
        assert not (run / RUN_FILE).exists()
        raise
    for name in ("steps", "preemptions", "transfers"):
        frame = tables.read(tables.TABLES[name], run / f"{name}.parquet")
        beyond = ["copy_s"]  # relative to the due time, and so below 0 at times
        numbers = frame.select_dtypes("number").drop(columns=beyond, errors="ignore")
        assert not (numbers < 0).any(axis=None)
    read_run(run)


@st.composite
def other_fields(draw: st.DrawFn) -> bytes:
    """The stats series with another value in a field."""
    rows = [line.split(",") for line in STATS.splitlines()]
    rows[draw(st.integers(1, 5))][draw(st.integers(0, 6))] = str(draw(VALUES))
    return joined(*map(",".join, rows))


def of_lines(text: str) -> st.SearchStrategy[bytes]:
    return shuffled(text.splitlines()).map(lambda lines: joined(*lines))


WRITE_FILE, READ_FILE = "kv_write_pattern.json", "kv_read_pattern.json"
FILES = (
    FileKind(
        "steps.csv", STEPS.encode(), imported, (of_lines(STEPS),), {"stats.csv": STATS.encode()}
    ),
    FileKind(
        *("stats.csv", STATS.encode(), imported),
        (of_lines(STATS), other_fields()),
        {"steps.csv": STEPS.encode()},
    ),
    FileKind(
        *(WRITE_FILE, json_lines(WRITES), imported),
        (altered_lines(WRITES),),
        {READ_FILE: json_lines(READS)},
    ),
    FileKind(
        *(READ_FILE, json_lines(READS), imported),
        (altered_lines(READS),),
        {WRITE_FILE: json_lines(WRITES)},
    ),
    FileKind(READ_FILE, json_lines(READS), imported, (altered_lines(READS),)),
)


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: f"{kind.name} of {len(kind.beside) + 1}")
@given(data=st.data())
@settings(max_examples=20)
def test_a_damaged_file_is_imported_or_refused_in_one_sentence(
    kind: FileKind, data: st.DataObject
) -> None:
    assert kind.refusal(kind.sound) is None
    kind.refusal(data.draw(kind.contents))


def refusal(tmp_path: Path, kind: str, *contents: str) -> str:
    paths = [tmp_path / f"published-{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    with pytest.raises(BadInput) as caught:
        import_run(kind, paths, tmp_path / "run")
    assert not (tmp_path / "run" / RUN_FILE).exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("145.0,90.5,2,1", "145.0,90.5,2,1e9", "come and go"),
        ("145.0,90.5,2,1", "145.0,90.5,2,1e300", "line 4 has '1e300' for 'Swapped (reqs)'"),
        ("145.0,90.5,2,1", "145.0,90.5,2,0.5", "where a whole number"),
        ("145.0,90.5", "145.0,1e300", "line 4 has '1e300'"),
        ("350.0,9.8", "350.0,2000000000.0,", "line 5 has 8 fields, the header 7"),
        ("390.0,75.0", "1e11,2e9", "no pass does so many"),
        ("99.9,0.0", "99.9,1000", "for 'CPU KV cache usage (%)', where a number"),
        ("145.0,90.5", "109.9,90.5", "not of one run"),
        ("110.2", "1" * 200_000, "not readable as CSV"),
    ],
)
def test_numbers_that_no_run_has(tmp_path: Path, old: str, new: str, wrong: str) -> None:
    steps = STEPS.replace("2,30.1", "2,0.1")
    assert old in STATS
    message = refusal(tmp_path, "unboxkv-series", steps, STATS.replace(old, new))
    assert wrong in message
    assert "published-1" in message


def test_a_series_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LONGEST_SERIES_BYTES", 100)
    message = refusal(tmp_path, "unboxkv-series", STATS, STEPS)
    assert "published-0: more than 100 bytes" in message


def records(**changes: Any) -> str:
    return json_lines([WRITES[0], WRITES[1] | changes]).decode()


@pytest.mark.parametrize(
    ("writes", "wrong"),
    [
        (nested(200_000), "line 1 is not JSON"),
        (records(step=2**40), "line 2 is not as the artifact has them: step is 1099511627776"),
        (records(step=10**9), "more than the artifact could trace"),
        (records(step=0), "before the prefill pass"),
        (records(start_time=1e300), "line 2 .*start_time is 1e\\+300"),
        (records(seq_lens=[2**31, 1]), "line 2 .*seq_lens holds 2147483648"),
        (records(kv_cache_range=-4096), "line 2 .*kv_cache_range is -4096"),
        (records(kv_write_pattern_record=[[1, 2]]), "line 2 .*rows of 5 numbers"),
        (records(kv_write_pattern_record=5), "line 2 .*where a list is expected"),
        (records(kv_write_pattern_record=[]), "0 rows for 2 tokens"),
        (records(layer_id=None), "line 2 .*layer_id is None"),
    ],
)
def test_records_that_no_kernel_writes(tmp_path: Path, writes: str, wrong: str) -> None:
    assert re.search(wrong, refusal(tmp_path, "unboxkv-trace", writes, json_lines(READS).decode()))


def test_each_record_of_a_pass_of_its_own_costs_the_same(tmp_path: Path) -> None:
    """Were passes looked for by each step anew, this would take minutes."""
    passes = [READS[-1] | {"step": step} for step in range(2, 600)]
    assert import_run("unboxkv-trace", written(tmp_path, json_lines(passes)), tmp_path / "run")


def written(folder: Path, content: bytes) -> list[Path]:
    path = folder / "kv_read_pattern.json"
    path.write_bytes(content)
    return [path]
