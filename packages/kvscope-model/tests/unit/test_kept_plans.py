"""Plans are kept for later, and are made anew where what is kept cannot be read."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up_plans import PLAN

from kvscope_model.capacity import request
from kvscope_model.capacity.request import ANSWER, Answer, Question, ask

QUESTION = Question("made-up", {"model_type": "x"}, [], [256], False, 2**20, None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of plans that processes were asked for."""
    asked_for: list[int] = []

    def answered(asked: Sequence[Any], _: Question) -> list[dict[str, Any]]:
        asked_for.append(len(asked))
        return [ANSWER.dump_python(Answer(PLAN, {}, []), mode="json") for _ in asked]

    monkeypatch.setattr(request, "_answered", answered)
    return asked_for


def test_a_plan_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ask(QUESTION).plan == ask(QUESTION).plan == PLAN
    assert made == [1]


@pytest.mark.parametrize("text", ["", "{", "{}", json.dumps({"plan": {"blocks": "many"}})])
def test_a_damaged_answer_is_made_anew(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ask(QUESTION)
    (kept,) = tmp_path.rglob("*.json")
    kept.write_text(text)
    assert ask(QUESTION).plan == PLAN
    assert made == [1, 1]


def test_a_cache_that_cannot_be_written_costs_no_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ask(QUESTION).plan == PLAN
    assert "the plan is not kept" in capsys.readouterr().err


ASKS = """
from kvscope_model.capacity import request
request.PROCESS = "sleeper"
request.ask(request.Question("made-up", {"model_type": "x"}, [], [256], False, 2**20, None))
"""


def test_a_command_that_is_ended_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "sleeper.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
        "time.sleep(600)\n"
    )
    places = {"TMPDIR": str(tmp_path / "temporary"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = os.environ | places | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", ASKS], env=environment) as asking:
        while not (tmp_path / "started").exists():
            assert asking.poll() is None
            time.sleep(0.01)
        asking.terminate()
    assert asking.returncode == 128 + signal.SIGTERM
    assert not [*(tmp_path / "temporary").iterdir()]
