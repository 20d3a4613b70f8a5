"""docs/EXTENDING.md, followed to the letter in an empty directory."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.warm import Warm

from .conftest import ROOT

pytestmark = pytest.mark.engine
TEXT = (ROOT / "docs" / "EXTENDING.md").read_text(encoding="utf-8")


def block(after: str, language: str) -> str:
    """The first code block of a language after some words of the document."""
    rest = TEXT.partition(after)[2]
    found = re.search(rf"```{language}\n(.*?)```", rest, re.S)
    assert found, f"no {language} block after {after!r}"
    return found.group(1)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """The example's directory after its commands; its package is kept out of this environment."""
    directory = tmp_path_factory.mktemp("long-swap")
    (directory / "pyproject.toml").write_text(block("`pyproject.toml`:", "toml"))
    (directory / "long_swap.py").write_text(block("`long_swap.py`:", "python"))
    installed = directory / "installed"
    commands = block("Install it and run it:", "bash").replace("\\\n", " ").splitlines()
    for command in commands:
        words = shlex.split(command)
        if words[0] == "pip":
            words = [sys.executable, "-m", "pip", "-q", *words[1:], "--target", str(installed)]
        elif words[0] == "kvscope":
            words = [sys.executable, "-m", "kvscope.cli", *words[1:]]
        environment = os.environ | {"PYTHONPATH": f"{installed}:{warm.variables['PYTHONPATH']}"}
        done = subprocess.run(words, capture_output=True, text=True, cwd=directory, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return directory


def test_long_victims_are_swapped_and_short_ones_recomputed(example: Path):
    events = pd.read_parquet(example / "mine" / "preemptions.parquet")
    victims = events[events["event"] == "preempt"]
    assert set(victims["policy"]) == {"swap", "recompute"}
    assert ((victims["tokens"] >= 150) == (victims["policy"] == "swap")).all()


def test_the_example_is_thirty_lines_at_most():
    assert len(block("`long_swap.py`:", "python").splitlines()) <= 30
