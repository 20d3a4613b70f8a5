"""The documents' tables are those that the code declares."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvscope
from kvscope.base.errors import BadInput
from kvscope.cli.docs import BLOCKS, regenerate
from kvscope.judge.checklist import every_oracle
from kvscope.judge.reason import REASONS
from kvscope.metrics.registry import all_metrics
from kvscope.metrics.study import STUDY_METRICS

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(kvscope.__file__).parent


OWN = [path for path in sorted(DOCS.glob("*.md")) if not path.is_symlink()]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_generated_tables_are_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert regenerate(text) == text, "run `python -m kvscope.cli.docs`"


def test_every_generated_table_is_in_a_document() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert [name for name in BLOCKS if texts.count(f"<!-- generated: {name} -->") != 1] == []


def test_every_name_is_declared_once() -> None:
    declared: list[list[Any]] = [[*all_metrics(), *STUDY_METRICS], [*REASONS, *every_oracle()]]
    for registry in declared:
        names = [entry.name for entry in registry]
        assert len({*names}) == len(names)


def test_an_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="generated: nothing: unknown"):
        regenerate("<!-- generated: nothing -->\n<!-- end -->")


def test_the_version_is_the_same_everywhere() -> None:
    root = DOCS.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## (\S+)", changes, re.M)[0]
    assert project["version"] == citation["version"]
    assert newest in ("Unreleased", project["version"])


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+(?:\.py|\.smk|/))`", text))
    assert len(named) > 30
    places = (SOURCE, DOCS.parent, *DOCS.parent.glob("packages/*/src/kvscope_*"))
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert not missing
