"""The state on disk is the truth: between processes, after kills, and if files are cut off."""

import dataclasses
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from submitit_packs.directory import PackDirectory, Result, State
from submitit_packs.ledger import LEDGER, Ledger, Place


def result(state=State.OK, attempt=1, exit_code=0, **more) -> Result:
    return Result(state, exit_code, "n1", "0", (), 1.0, 2.0, attempt, **more)


@pytest.fixture
def directory(tmp_path) -> PackDirectory:
    (tmp_path / "pack-1").mkdir()
    return PackDirectory(tmp_path / "pack-1")


def test_a_result_comes_back(directory):
    directory.begin_attempt()
    for state in State:
        there = result(state, reason="because", exit_code=-9)
        assert directory.write_result("m", there)
        assert directory.result("m") == there
        assert there.is_final == (state in {"ok", "failed", "timeout"})
    assert list(directory.keys()) == ["m"]


def test_a_writer_of_an_earlier_attempt_writes_nothing(directory):
    first = directory.begin_attempt()
    second = directory.begin_attempt()
    assert not directory.write_result("m", result(attempt=first))
    assert directory.result("m") is None
    assert directory.write_result("m", result(attempt=second))


def test_a_closed_directory_takes_no_result(directory):
    number = directory.begin_attempt()
    directory.close()
    assert not directory.write_result("m", result(attempt=number))
    assert directory.attempt().stop


def test_an_earlier_attempt_cannot_stop_a_later_one(directory):
    first = directory.begin_attempt()
    directory.begin_attempt()
    directory.stop(first, "preempted")
    assert directory.attempt().stop == ""


@pytest.mark.parametrize("content", [b"", b"{", b'{"state": "ok"', b"\xff"])
def test_a_damaged_file_counts_as_missing(directory, content):
    for name in ("m.rc", "plan.json", "job.json", "attempt.json"):
        (directory.path / name).write_bytes(content)
    assert directory.result("m") is None
    assert directory.plan() is None
    assert directory.job() is None
    assert directory.attempt().number == 0


def test_nothing_is_left_of_a_write_that_fails(directory, monkeypatch):
    directory.begin_attempt()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        directory.write_result("m", result())
    assert [p.name for p in directory.path.iterdir()] == ["attempt.json"]


@pytest.fixture(autouse=True, scope="module")
def no_fsync():
    """No machine loses its power here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("reserve"), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5))
        ),
        st.tuples(st.just("report"), st.lists(st.sampled_from("abcdef"))),
    ),
    max_size=12,
)


def replay(ledger: Ledger, events) -> dict[str, Place]:
    """The plain reference: a dictionary that follows the events."""
    places: dict[str, Place] = {}
    for number, (kind, what) in enumerate(events):
        if kind == "reserve":
            ledger.reserve(f"pack-{number}", what)
            places |= {key: Place(f"pack-{number}", tries) for key, tries in what.items()}
        else:
            ledger.report({key: (True, "", None) for key in what})
            for key in what:
                places.pop(key, None)
    return places


@given(EVENTS, EVENTS)
def test_a_ledger_that_is_read_again_goes_on(first, second):
    with tempfile.TemporaryDirectory() as root:
        expected = replay(Ledger(Path(root)), first)
        again = Ledger(Path(root))
        assert again.places == expected
        replay(again, second)
        assert Ledger(Path(root)).places == again.places


@given(EVENTS.filter(bool), st.data())
def test_a_controller_killed_while_it_writes_loses_the_last_line_only(events, data):
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / LEDGER
        *before, last = events
        replay(Ledger(Path(root)), before)
        size = path.stat().st_size if path.exists() else 0
        expected = Ledger(Path(root)).places
        replay(Ledger(Path(root)), [last])
        whole = path.read_bytes() if path.exists() else b""
        cut = data.draw(st.integers(size, max(size, len(whole) - 2)))
        if path.exists():
            path.write_bytes(whole[:cut])
        again = Ledger(Path(root))
        assert again.places == expected
        again.reserve("pack-z", {"z": 0})  # goes on in a line of its own
        assert Ledger(Path(root)).places == {**expected, "z": Place("pack-z", 0)}


def test_files_of_the_contract_are_plain_json(directory):
    directory.begin_attempt()
    directory.write_result("m", result())
    plain = json.loads((directory.path / "m.rc").read_text())
    assert plain == {**dataclasses.asdict(result()), "gpu_uuids": [], "state": "ok"}
