"""Tables that other packages add to the record of a run: entry points `kvscope.table`.

A table is recorded in every run that is made where its package is installed. Where it is not, the
file of the table stays a file of the run, and nothing reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kvscope import plugins
from kvscope.errors import BadInput
from kvscope.runfile import TABLES_OF_OTHERS
from kvscope.tables import TABLES
from kvscope.tables.column import WITNESSED, Table
from kvscope.tables.files import to_arrow

if TYPE_CHECKING:  # the workflow, which reads no table, does without
    import pandas as pd

GROUP = TABLES_OF_OTHERS
KEYS = ["repeat", "step"]
"""What the keys of a table begin with, so that its rows are those of a pass of a repeat."""


@dataclass(frozen=True)
class AddedTable:
    """A table of another package, and where its columns come from.

    `recorder` names a class, 'module:Class', of `kvscope.engine.added.RowRecorder`, which gives the
    told and witnessed columns; only the measured process imports it. `derive` takes rows that have
    those, and returns them with the derived ones. `follows` gives, of a run of one repeat, the keys
    and the witnessed columns as they follow from what the run is told.
    """

    table: Table
    recorder: str
    derive: "Callable[[pd.DataFrame], pd.DataFrame]" = lambda rows: rows
    follows: "Callable[[Any], pd.DataFrame] | None" = None

    def columns(self, role: str) -> list[str]:
        """The names of its columns of a role."""
        return [column.name for column in self.table.columns if column.role == role]

    def rows(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """The table of these rows, with its derived columns and its types."""
        typed: pd.DataFrame = to_arrow(self.table, self.derive(rows)).to_pandas()
        return typed


@cache
def added_tables() -> dict[str, AddedTable]:
    """The tables of installed packages, by name; BadInput if one cannot be a table."""
    return {name: _loaded(name) for name in plugins.names(GROUP)}


def _loaded(name: str) -> AddedTable:
    found = plugins.load(GROUP, name, AddedTable)
    place = f"{GROUP} {name} ({plugins.origin(GROUP, name)})"
    if found.table.name != name:
        raise BadInput(f"{place} is a table named '{found.table.name}'; give both one name")
    if found.table.keys[:2] != KEYS:
        raise BadInput(f"{place} has the keys {found.table.keys}, which must begin with {KEYS}")
    if found.columns(WITNESSED) and found.follows is None:
        raise BadInput(f"{place} has witnessed columns, and `follows` does not say from what")
    return found


def find_table(name: str) -> Table | None:
    """The table of a name, by kvscope or another package; None if there is none."""
    if name in TABLES:
        return TABLES[name]
    return added_tables()[name].table if name in plugins.names(GROUP) else None
