"""Words of `kvscope calibrate` are completed."""

from pathlib import Path

from tests.unit.test_completion import complete, here

__all__ = ["here"]


def test_runs_and_planned_studies(here: Path) -> None:
    assert complete("kvscope calibrate ol", here) == ["old"]
    assert complete("kvscope calibrate old --predict tr", here) == ["tried"]
