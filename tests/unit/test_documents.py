"""The documents name everything the code has, in the code's words."""

import re
from pathlib import Path

import pytest

from kvscope import analyse
from kvscope.analyse.metrics import METRICS
from kvscope.collect.judge import NAMES
from kvscope.tables import TABLES

DOCS = Path(__file__).parents[2] / "docs"


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
    assert documented == reasons | set(NAMES)
