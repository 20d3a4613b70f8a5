"""Names that become paths, text that is read or shown, and directories that are left."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.base.files import check_name
from kvscope.base.reading import short_repr, text_lines
from kvscope.base.scratch import scratch_directory


@pytest.mark.parametrize("name", ["quickstart", "tiny-opt", "a.b_c-1", "3", "A" * 200])
def test_a_name_is_given_back(name: str) -> None:
    assert check_name(name, "study") == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/a", ".hidden", "-rf", "a\n", "a b", "a\0", "é", "~", "$(x)",
     "A" * 201, None, 3, ["a"], b"a"],
)  # fmt: skip
def test_what_could_lead_elsewhere_is_no_name(name: Any) -> None:
    with pytest.raises(BadInput, match=r"^study is .* but must be a name") as error:
        check_name(name, "study")
    assert str(error.value).isprintable()


@given(st.text())
def test_a_name_is_one_step_of_a_path(name: str) -> None:
    try:
        check_name(name, "study")
    except BadInput:
        return
    assert Path("results", name).parts == ("results", name)
    assert Path("results", name).resolve().parent == Path("results").resolve()


def test_lines_are_given_with_their_ends_without_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffa,b\r\n1,é\n\n2".encode())
    assert list(text_lines(path, 10)) == ["a,b\r\n", "1,é\n", "\n", "2"]


def test_a_long_value_is_shown_in_part() -> None:
    assert short_repr("short") == "'short'"
    for value in ("x" * 10**6, [0] * 10**6, {"a": [["b"] * 1000] * 1000}, 10**1000, "\n" * 1000):
        assert len(short_repr(value)) < 200
        assert "\n" not in short_repr(value)


def test_a_scratch_directory_of_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = (
        "import os; from kvscope.base.scratch import scratch_directory as made\n"
        "with made() as place: (place / 'file').touch(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program])
    (left,) = tmp_path.iterdir()
    assert (left / "file").exists()
    with scratch_directory() as one, scratch_directory() as other:
        assert {*tmp_path.iterdir()} == {one, other}, "one in use stays"
    assert [*tmp_path.iterdir()] == []
