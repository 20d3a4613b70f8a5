"""The documents name everything the code has, in the code's words."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import kvscope
from kvscope import analyse
from kvscope.analyse.checklist import EVERY_ORACLE
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.oracles.of_engine import ORACLES_OF_ENGINE
from kvscope.analyse.oracles.registry import ORACLES, ROWS
from kvscope.tables import TABLES

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(kvscope.__file__).parent


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_every_column_is_in_the_trace_specification(table):
    text = (DOCS / "TRACE_SPEC.md").read_text(encoding="utf-8")
    section = text.partition(f"## {table.name}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == table.names


def test_every_metric_has_its_formula_and_no_other_has():
    text = (DOCS / "METRICS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", text.partition("## Shape")[0], re.M)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(metric.name for metric in METRICS)


def test_every_reason_is_explained():
    text = (DOCS / "METRICS.md").read_text(encoding="utf-8")
    sources = Path(analyse.__file__).parent.rglob("*.py")
    found = (re.findall(r'Reason\("(\w+)"', path.read_text(encoding="utf-8")) for path in sources)
    reasons = {name for names in found for name in names}
    documented = set(re.findall(r"^\| `(\w+)` \|", text.partition("## Validity")[2], re.M))
    assert documented == reasons | {oracle.name for oracle in EVERY_ORACLE}


def test_the_oracles_of_tables_are_documented_by_their_sentences():
    text = (DOCS / "METRICS.md").read_text(encoding="utf-8")
    for oracle in (*ROWS, *ORACLES, *ORACLES_OF_ENGINE):
        assert f"| `{oracle.name}` | {oracle.sentence} |" in text


def test_the_version_is_the_same_everywhere():
    root = DOCS.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changes, re.M).group(1)
    assert project["version"] == citation["version"]
    assert newest in ("Unreleased", project["version"])


def test_every_file_that_the_architecture_names_exists():
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+(?:\.py|\.smk|/))`", text))
    assert len(named) > 30
    places = (SOURCE, DOCS.parent)
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert not missing
