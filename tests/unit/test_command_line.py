"""The command line: words and options in any order, numbers within limits, lines at once."""

import argparse
import itertools
from pathlib import Path

import pytest

from kvscope.cli.main import build_parser, main

# For each command that takes a list of words: the words, and options with their values.
MIXED = {
    "plan": (["study=two", "seed=1"], [["--json"], ["--write", "there"]]),
    "run": (["model=a", "seed=1"], [["--out", "there"], ["--force"]]),
    "report": (["one", "two"], [["--results", "there"]]),
    "analyse": (["one", "two"], [["--out", "there"]]),
}


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.mark.parametrize("command", MIXED)
def test_words_and_options_may_be_in_any_order(command: str) -> None:
    any_order_is_the_same(command, *MIXED[command])


def any_order_is_the_same(command: str, words: list[str], options: list[list[str]]) -> None:
    usual = parsed(command, *words, *itertools.chain(*options))
    for order in itertools.permutations([*([word] for word in words), *options]):
        if [part[0] for part in order if part[0] in words] == words:
            assert parsed(command, *itertools.chain(*order)) == usual


@pytest.mark.parametrize("words", [["--nosuch", "1"], ["--results", "x", "--nosuch"], ["-z"]])
def test_an_unknown_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("report", "one", *words)
    assert ended.value.code == 2
    assert "unrecognized arguments: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--write="),
        ("plan", "--config-dir="),
        ("collect", "x", "--out="),
        ("analyse", ""),
        ("report", "x", "--results="),
    ],
)
def test_an_empty_path_is_not_the_working_directory(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "the path is empty; the working directory is '.'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_too_long_a_name_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--config-dir", 5000 * "a"])
    assert ended.value.code == 2
    assert "is not a directory" in capsys.readouterr().err
