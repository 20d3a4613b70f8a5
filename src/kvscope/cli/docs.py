"""Generates the tables of documents from the code: `python -m kvscope.cli.docs [DIRECTORY…]`.

In a document, the text between `<!-- generated: NAME -->` and `<!-- end -->` is replaced. A package
registers a function that returns a table of its documents in the entry-point group
`kvscope.document`.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from types import FunctionType
from typing import Any

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.files import write_text_if_changed
from kvscope.judge.checklist import FACTS
from kvscope.judge.oracles.of_packages import GROUP as ORACLE
from kvscope.judge.oracles.registry import ROWS, all_oracles
from kvscope.judge.reason import REASONS
from kvscope.metrics.circumstances import CIRCUMSTANCES
from kvscope.metrics.measure import Measure
from kvscope.metrics.metric import Metric
from kvscope.metrics.registry import OWN
from kvscope.metrics.study import STUDY_METRICS
from kvscope.plan.figures import GROUP as FIGURE
from kvscope.report.figures.registry import figures
from kvscope.tables import TABLES, Table, evidence
from kvscope.tables.column import ROLES
from kvscope.tables.oracle import Oracle

_BLOCK = re.compile(r"<!-- generated: ([\w ]+) -->\n.*?<!-- end -->", re.DOTALL)
GROUP = "kvscope.document"
API = Path(__file__).parents[1] / "api"
Row = tuple[str, ...]


def markdown(header: Row, rows: Iterable[Row]) -> str:
    """A table in Markdown."""
    escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in rows)
    lines = (header, ("---",) * len(header), *escaped)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


BETTER = {1: "more", -1: "less", 0: "–"}


def _rows_of_metrics(metrics: Iterable[Measure]) -> list[Row]:
    """(names, unit, better, formula) of metrics; those with one formula (mean, p99) share a row."""

    def name(metric: Measure) -> str:
        modeled = isinstance(metric, Metric) and metric.modeled_interval
        return f"`{metric.name}`{' ±' if modeled else ''}"

    return [
        (", ".join(map(name, same)), unit, BETTER[better], formula)
        for (unit, better, formula), same in groupby(
            metrics, key=lambda m: (m.unit, m.better, m.formula)
        )
    ]


def _metrics_table(metrics: Iterable[Measure]) -> str:
    return markdown(("metric", "unit", "better", "formula"), _rows_of_metrics(metrics))


def _oracles_table(oracles: Iterable[Oracle[Any]]) -> str:
    rows = [(f"`{o.name}`", " ".join(filter(None, (o.sentence, o.details)))) for o in oracles]
    return markdown(("reason", "what must hold"), rows)


def _is_own(oracle: Oracle[Any]) -> bool:
    """Whether an oracle is kvscope's own; oracles of packages stand in the packages' documents."""
    return oracle.name not in plugins.names(ORACLE) or not plugins.origin(ORACLE, oracle.name)


def _figures_table() -> str:
    """Figures of kvscope itself; figures of packages stand in the packages' documents."""
    ours = {name: figure for name, figure in figures().items() if not plugins.origin(FIGURE, name)}
    rows = [(f"`{name}`", figure.title, figure.axes) for name, figure in ours.items()]
    return markdown(("figure", "shows", "declared axes"), rows)


def _columns_table(table: Table) -> str:
    rows = [
        (
            f"`{column.name}`",
            str(column.type).replace("item: ", ""),
            column.role,
            ", ".join(column.evidence) or "–",
            column.meaning,
        )
        for column in table.columns
    ]
    header = ("column", "type", "role", "evidence", "meaning")
    return f"One row: {table.row}.\n\n" + markdown(header, rows)


def _words_table(word: str, meanings: Mapping[str, str]) -> str:
    return markdown((word, "meaning"), [(f"`{name}`", text) for name, text in meanings.items()])


def _api_table() -> str:
    """The modules of kvscope.api, with their docstrings and the names in `__all__`."""
    rows = []
    for path in sorted(API.glob("[!_]*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        summary = str(ast.get_docstring(module)).partition("\n\n")[0]
        names = ", ".join(f"`{name}`" for name in _exported(module))
        rows.append((f"`kvscope.api.{path.stem}`", " ".join(summary.split()), names))
    return markdown(("module", "for", "names"), rows)


def _exported(module: ast.Module) -> list[str]:
    """Names that a module lists in `__all__`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


BLOCKS: dict[str, Callable[[], str]] = {
    "api": _api_table,
    "metrics": lambda: _metrics_table(OWN),
    "metrics of studies": lambda: _metrics_table(STUDY_METRICS),
    "figures": _figures_table,
    "reasons": lambda: markdown(
        ("reason", "meaning"), [(f"`{kind.name}`", kind.meaning) for kind in REASONS]
    ),
    "circumstances": partial(_words_table, "circumstance", CIRCUMSTANCES),
    "roles": partial(_words_table, "role", ROLES),
    "evidence": partial(_words_table, "evidence", evidence.MEANINGS),
    "oracles": lambda: _oracles_table((*ROWS, *filter(_is_own, all_oracles()), *FACTS)),
    **{f"table {table.name}": partial(_columns_table, table) for table in TABLES.values()},
}


@cache
def blocks() -> dict[str, Callable[[], str]]:
    """The function of each generated block, by name, including blocks of packages."""
    others = {name: plugins.load(GROUP, name, FunctionType) for name in plugins.names(GROUP)}
    return BLOCKS | others


def regenerate(text: str) -> str:
    """Return a document with its generated blocks replaced; BadInput for an unknown block."""

    def block(found: re.Match[str]) -> str:
        name = found[1]
        if name not in blocks():
            raise BadInput(f"generated: {name}: unknown, known are {', '.join(blocks())}")
        return f"<!-- generated: {name} -->\n{blocks()[name]()}<!-- end -->"

    return _BLOCK.sub(block, text)


def main(*directories: Path) -> None:
    """Generate the tables of all documents in directories; print the paths that changed."""
    for path in sorted(path.resolve() for home in directories for path in home.glob("*.md")):
        if write_text_if_changed(path, regenerate(path.read_text(encoding="utf-8"))):
            print(path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:] or ["docs"]))
