"""The words of `kvscope submit` and `kvscope status`, and what they refuse."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.cli.main import main
from tests.unit.test_command_line import any_order_is_the_same, parsed

MIXED = {
    "submit": (["study=two", "seed=1"], [["--cluster", "local"], ["--length", "5"]]),
    "status": (["one", "two"], [["--results", "there"], ["--all"]]),
}


@pytest.mark.parametrize("command", MIXED)
def test_words_and_options_may_be_in_any_order(command: str) -> None:
    any_order_is_the_same(command, *MIXED[command])


def test_an_empty_path_is_not_the_working_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["submit", "x=1", "--profile="])
    assert ended.value.code == 2
    assert "the path is empty; the working directory is '.'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("status x --watch=-1", "'-1' is not a duration above 0"),
        ("status x --watch nan", "'nan' is not a duration above 0"),
        ("status x --watch inf", "'inf' is not a duration above 0"),
        ("submit seed=1 --length=-5", "'-5' is not a duration above 0"),
        ("submit seed=1 --length nan", "'nan' is not a duration above 0"),
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
def test_impossible_submissions_are_one_sentence(
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


@given(st.text(max_size=6))
def test_no_text_in_place_of_a_number_is_a_traceback(text: str) -> None:
    try:
        result = parsed("status", "x", f"--watch={text}").watch
    except SystemExit:
        return
    assert 0 < result < float("inf")
