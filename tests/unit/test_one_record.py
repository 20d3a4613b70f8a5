"""run.json is a dictionary only where it is written; whoever reads it holds a `RunRecord`."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvscope.base.errors import BadInput
from kvscope.tables.results import Run
from kvscope.tables.runfile import read_record, read_run, write_run
from kvscope.tables.runschema import NO_RECORD, VERSION, RunRecord
from tests.run_records import facts_of, record_of

ROOT = Path(__file__).parents[2]

OF_OTHERS = (
    # Columns of a stretch of a request's life.
    *("kvscope_explain/life.py", "kvscope_explain/explained.py"),
    "kvscope_record/",  # what a recording says of its server
    *("engine/attention/reference.py", "run/session.py", "kvscope_offload/modeled_engine.py"),
)
"""Modules whose `facts` are of something else, or entries of a run.json to be written."""


@cache
def sources() -> dict[Path, ast.Module]:
    """The modules of kvscope and its packages, parsed."""
    places = ("src/kvscope/**/*.py", "packages/kvscope-*/src/**/*.py")
    return {path: ast.parse(path.read_text()) for place in places for path in ROOT.glob(place)}


def digs() -> Iterator[str]:
    """Places that take the dictionary of a run, with their lines."""
    for path, tree in sources().items():
        if any(part in path.as_posix() for part in OF_OTHERS):
            continue
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr="facts") if id(node) not in called:
                    yield f"{path.name}:{node.lineno}"
                case ast.Call(func=ast.Name("read_run") | ast.Attribute(attr="read_run")):
                    yield f"{path.name}:{node.lineno}"
                case ast.Call(func=ast.Name("read_json")) if "RUN_FILE" in ast.unparse(node):
                    yield f"{path.name}:{node.lineno}"


def test_no_module_digs_in_run_json() -> None:
    """The producer of a run is given the contents of its run.json."""
    assert [place for place in digs() if not place.startswith("virtual.py:")] == []


@pytest.mark.parametrize(
    "code", ["run.facts['status']", "runfile.read_run(place)", "read_json(place / RUN_FILE)"]
)
def test_a_dig_is_noticed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources(), Path("new.py"), ast.parse(f"found = {code}"))
    assert "new.py:1" in [*digs()]


# ------------------------------------------------------------------------ what a record is


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        record_of().status = "failed"  # type: ignore[misc]


def test_a_key_that_a_file_lacks_has_a_default_and_is_known_to_be_absent() -> None:
    record = record_of(engine={"layers": 2})
    assert (record.engine.block_size, record.engine.states("block_size")) == (0, False)
    assert record.engine.stated("block_size") is None
    assert record.engine.stated("layers") == 2
    assert (record.tracing, record.imported_from, record.clock.repeats) == (None, None, [])


def test_keys_that_later_versions_add_are_kept() -> None:
    record = record_of(engine={"later": {"a": 1}}, also=2)
    assert record.engine.stated("later") == {"a": 1}
    assert record.as_written()["also"] == 2


def test_integers_stay_integers_where_a_double_does_not_hold_them() -> None:
    ticks = 2**62 + 1
    clock = {"name": "tsc", "samples": [{"ticks": ticks, "host_ns": 0, "uncertainty_ns": 0}]}
    result = record_of(tracing={"name": "full", "clock": clock}).tracing
    assert result
    assert result.clock
    assert result.clock.samples[0].ticks == ticks


@pytest.mark.parametrize(
    "wrong", [{"tracing": None}, {"engine": {"copies_awaited": None}}, {"hardware": {"gpus": None}}]
)
def test_null_is_no_absence(wrong: dict[str, Any], tmp_path: Path) -> None:
    write_run(tmp_path, facts_of(**wrong))
    with pytest.raises(BadInput, match=r"run\.json: not the record of a run: key .*\(None\)"):
        read_record(tmp_path)


def test_a_run_has_its_record_typed_and_as_a_dictionary(tmp_path: Path) -> None:
    facts = facts_of(schema=VERSION, engine={"block_bytes": 4096, "later": 1})
    write_run(tmp_path, facts)
    run = Run(tmp_path)
    assert run.record == RunRecord.model_validate(facts) == read_record(tmp_path)
    assert run.facts == facts == read_run(tmp_path)
    assert run.of_repeat(0).record is run.record
    assert run.variant(facts=facts_of(status="failed")).record.complete is False


def test_without_a_run_there_is_an_empty_record() -> None:
    assert (NO_RECORD.complete, NO_RECORD.files, NO_RECORD.engine.layers) == (False, {}, None)
