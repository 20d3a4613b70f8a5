"""Additions of a package to kvscope-model, and their place on kvscope's checklist."""

from pathlib import Path

import pytest

from kvscope.base import plugins
from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_DONE
from kvscope.cli.main import main
from kvscope.judge.oracles.registry import all_oracles
from tests.unit.test_plugins import _commands_alone, toys

__all__ = ["toys"]


def test_published_times_are_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "errors"
    assert main(["calibrate", "--published", "--samples", "2", "--out", str(out)]) == EXIT_DONE
    assert "pinned_copy_s" in capsys.readouterr().out
    assert out.read_text() == "['copies']\n"


def test_without_published_times_there_is_nothing_to_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "entry_points", _commands_alone)
    assert main(["calibrate", "--published"]) == EXIT_BAD_INPUT
    assert "there are none" in capsys.readouterr().err


def test_an_oracle_stands_on_the_checklist_where_it_says() -> None:
    names = [oracle.name for oracle in all_oracles()]
    at = names.index("dry_time_wrong")
    following = ["modeled_time_wrong", "modeled_kernel_wrong", "modeled_output_wrong"]
    assert names[at + 1 : at + 4] == following
