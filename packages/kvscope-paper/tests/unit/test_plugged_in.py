"""Additions of the package to kvscope's command line, documents and configuration."""

from pathlib import Path

import pytest

import kvscope_paper
from kvscope.cli.docs import regenerate
from kvscope.cli.main import main
from kvscope.collect import importer
from kvscope.plan.grid import expand

DOCS = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_generated_tables_are_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert regenerate(text) == text, f"run `python -m kvscope.cli.docs {path.parent}`"


def test_a_wheel_has_every_module() -> None:
    """setuptools leaves a directory without an __init__.py out."""
    places = {module.parent for module in Path(kvscope_paper.__file__).parent.rglob("*.py")}
    assert [place for place in places if not (place / "__init__.py").exists()] == []


def test_the_kinds_of_the_artifact_can_be_imported() -> None:
    assert {"unboxkv", "unboxkv-series", "unboxkv-trace"} <= {*importer.kinds()}
    assert all(importer.importer(kind) for kind in importer.kinds())


def test_the_study_can_be_planned_from_anywhere(tmp_path: Path) -> None:
    plan = expand("paper", [], tmp_path)
    assert len({planned.label for planned in plan.experiments}) == len(plan.experiments) == 438


@pytest.mark.parametrize("repeat", ["-1", "1.5"])
def test_a_repeat_that_cannot_be_is_refused(
    repeat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["score", "steps.csv", "--run", "run", "--repeat", repeat])
    assert f"{repeat!r} is not a whole number of at least 0" in capsys.readouterr().err
