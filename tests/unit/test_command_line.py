"""The command line: words and options in any order, numbers within limits, lines at once."""

import argparse
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.cli import build_parser, main

# Of each command that takes a list of words: the words, and options with their values.
MIXED = {
    "plan": (["study=two", "seed=1"], [["--json"], ["--write", "there"]]),
    "run": (["model=a", "seed=1"], [["--out", "there"], ["--force"]]),
    "submit": (["study=two", "seed=1"], [["--cluster", "local"], ["--length", "5"]]),
    "status": (["one", "two"], [["--results", "there"], ["--all"]]),
    "report": (["one", "two"], [["--results", "there"]]),
    "analyse": (["one", "two"], [["--out", "there"]]),
}


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.mark.parametrize("command", MIXED)
def test_words_and_options_may_be_in_any_order(command: str) -> None:
    words, options = MIXED[command]
    usual = parsed(command, *words, *itertools.chain(*options))
    for order in itertools.permutations([*([word] for word in words), *options]):
        if [part[0] for part in order if part[0] in words] == words:
            assert parsed(command, *itertools.chain(*order)) == usual


@pytest.mark.parametrize("words", [["--nosuch", "1"], ["--results", "x", "--nosuch"], ["-z"]])
def test_an_unknown_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("status", "one", *words)
    assert ended.value.code == 2
    assert "unrecognized arguments: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("status x --watch=-1", "'-1' is not a duration above 0"),
        ("status x --watch nan", "'nan' is not a duration above 0"),
        ("status x --watch inf", "'inf' is not a duration above 0"),
        ("submit seed=1 --length=-5", "'-5' is not a duration above 0"),
        ("submit seed=1 --length nan", "'nan' is not a duration above 0"),
        ("calibrate --samples 0", "'0' is not a whole number of at least 1"),
        ("calibrate --samples 1.5", "'1.5' is not a whole number of at least 1"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*words.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


SUBMIT = ("submit", "model=tiny-llama", "--dry-run", "--cluster")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("local", "--length", "0.5"), "length is 0.5 but must be a number from 1 to"),
        (("local", "--length", "30s"), "length is 0.5 but must be a number from 1 to"),
        (("local", "--max-nodes", "0"), "max-nodes is 0 but must be a whole number from 1"),
        (("local", "--min-fill", "7"), "min-fill is 7.0 but must be a number from 0 to 1"),
        (("pbs", "--options", "pbs_nosuch=1"), "option pbs_nosuch is none; there are pbs_account"),
        (("pbs", "--options", "timeout_min=600"), "option timeout_min is none; there are pbs_"),
        (("pbs", "--options", "pbs_select=1"), "option pbs_select is set by the packs"),
        (("pbs", "--options", "pbs_place=a b"), "place is 'a b' but must be one word"),
        (("pbs", "--account", "x\n#PBS -q prod"), "account is 'x\\n#PBS -q prod' but must be one"),
    ],
)
def test_what_submit_cannot_do_is_one_sentence(
    tmp_path: Path, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--results", str(tmp_path))
    given = words if "--account" in words else (*words, "--account", "physics")
    assert main([*SUBMIT, *given, *place, "seed=3"]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.out == ""
    assert list(tmp_path.iterdir()) == []


PACK = re.compile(r"pack-[0-9a-f]+")
PBS = (*SUBMIT, "pbs", "--account", "physics")


def test_a_dry_run_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    assert main([*PBS, "--results", str(results), "seed=3,4"]) == 0
    dry = PACK.sub("pack", capsys.readouterr().out)
    assert "# 1 jobs, 2 experiments" in dry
    assert list(tmp_path.iterdir()) == []
    main(["plan", "model=tiny-llama", "seed=3,4", "--write", str(results)])
    capsys.readouterr()
    assert main([*PBS, "--results", str(results), "seed=3,4"]) == 0
    assert PACK.sub("pack", capsys.readouterr().out) == dry, "a plan that is written is the same"


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("pbs_umask=077", "#PBS -W umask=077\n"),
        ("pbs_chunk=3", "#PBS -l select=1:3\n"),
        ("pbs_rerunnable=false", "#PBS -r n\n"),
    ],
)
def test_an_option_is_in_the_script_as_it_is_written(
    option: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PBS, "--results", str(tmp_path), "--options", option]) == 0
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--write="),
        ("plan", "--config-dir="),
        ("collect", "x", "--out="),
        ("analyse", ""),
        ("report", "x", "--results="),
        ("submit", "x=1", "--profile="),
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


def test_a_directory_with_too_long_a_name_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--config-dir", 5000 * "a"])
    assert ended.value.code == 2
    assert "is not a directory" in capsys.readouterr().err


@given(st.text(max_size=6))
def test_no_text_in_place_of_a_number_is_a_traceback(text: str) -> None:
    try:
        found = parsed("status", "x", f"--watch={text}").watch
    except SystemExit:
        return
    assert 0 < found < float("inf")
