"""Tables that other packages add to the record of a run: entry points `kvscope.table`.

A table is recorded in every run that is made where its package is installed. Where it is not, the
file of the table stays a file of the run, and nothing reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.reading import one_line
from kvscope.tables import TABLES
from kvscope.tables.column import I32, WITNESSED, Table
from kvscope.tables.jobs import COLUMNS
from kvscope.tables.runfile import TABLES_OF_OTHERS

if TYPE_CHECKING:  # the workflow, which reads no table, does without
    import pandas as pd

GROUP = TABLES_OF_OTHERS
KEYS = ["repeat", "step"]
"""First keys of a table, so that its rows belong to a pass of a repeat."""


class NoTable(BadInput):
    """A run has no table of another package."""


@dataclass(frozen=True)
class AddedTable:
    """A table of another package, and where its columns come from.

    `recorder` names a class, 'module:Class', of `kvscope.engine.added.RowRecorder`, which gives the
    told and witnessed columns; only the measured process imports it. It is '' of a table whose rows
    the engine's recording has, and whose columns are judged by its replay (`kvscope.tables.jobs`).
    `derive` takes the rows of a repeat, which have the others, and returns them with the derived
    columns. `follows` gives, of a run of one repeat, the keys and the witnessed columns as they
    follow from what the run is told.
    """

    table: Table
    recorder: str
    derive: "Callable[[pd.DataFrame], pd.DataFrame]" = lambda rows: rows
    follows: "Callable[[Any], pd.DataFrame] | None" = None

    def columns(self, *roles: str) -> list[str]:
        """The names of its columns of these roles."""
        return [column.name for column in self.table.columns if column.role in roles]


@dataclass(frozen=True)
class JobTable(AddedTable):
    """A table with the columns of `kvscope.tables.jobs`; at most one such table may be installed.

    The engine's recording has its rows: each `Transfer` with a `job`. Its witnessed columns follow
    from the replay of the run (`kvscope.judge.twin.jobs`).
    """

    recorder: str = ""

    @classmethod
    def named(cls, name: str, row: str) -> "JobTable":
        """A table of this name, whose rows are each such a job."""
        return cls(Table(name, row, COLUMNS))


@cache
def added_tables() -> dict[str, AddedTable]:
    """The tables of installed packages, by name; BadInput if one cannot be a table."""
    return {name: _loaded(name) for name in plugins.names(GROUP)}


def job_table() -> JobTable | None:
    """The table of jobs of an installed package; None without one, BadInput with several."""
    tables_ = [table for table in added_tables().values() if isinstance(table, JobTable)]
    if len(tables_) > 1:
        names = " and ".join(table.table.name for table in tables_)
        raise BadInput(f"{names} are both tables of jobs; uninstall the package of one of them")
    return tables_[0] if tables_ else None


def _loaded(name: str) -> AddedTable:
    table = plugins.load(GROUP, name, AddedTable)
    if complaint := _complaint(name, table):
        raise BadInput(f"{GROUP} {name} ({plugins.origin(GROUP, name)}) {complaint}")
    return table


def _complaint(name: str, found: AddedTable) -> str | None:
    """Why it cannot be a table of this name; None if it can."""
    table = found.table
    if not isinstance(table, Table):
        return f"has {one_line(table, 60)!r} as `table`, which must be a {Table.__module__}.Table"
    if table.name != name:
        return f"is a table named '{table.name}'; give both one name"
    if name in TABLES or not name.isidentifier():
        return "must have a name of letters, digits and '_' that no table of kvscope has"
    if repeated := sorted({name_ for name_ in table.names if table.names.count(name_) > 1}):
        return f"has several columns {repeated}, whose names must differ"
    if table.keys[:2] != KEYS:
        return f"has the keys {table.keys}, which must begin with {KEYS}"
    if wrong := [c.name for c in table.columns if c.name in KEYS and c.type != I32]:
        return f"has the key {wrong[0]} of another type than {I32}"
    if found.recorder and found.columns(WITNESSED) and found.follows is None:
        return "has witnessed columns, and `follows` does not say from what"
    return None


def find_table(name: str) -> Table | None:
    """The table of a name, by kvscope or another package; None without such a table."""
    if name in TABLES:
        return TABLES[name]
    return added_tables()[name].table if name in plugins.names(GROUP) else None
