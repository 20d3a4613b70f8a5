"""A column of a table, the role that it has in the record of a run, and a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:  # not imported by the workflow, which reads no table
    import pandas as pd

SCHEMA_VERSION = 5

I32, I64, F64, BOOL, TEXT = pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string()
INTS = pa.list_(pa.int32())
TEXTS = pa.list_(pa.string())
DIM3 = pa.list_(pa.int32(), 3)

KEY, TOLD, WITNESSED, DERIVED, FACT = "key", "told", "witnessed", "derived", "fact"
ROLES = {
    KEY: "names the row: its repeat, pass, request, place",
    TOLD: "a decision of the engine, or a reading of a clock: nothing else in the run says it",
    WITNESSED: "stated by the engine, and it follows from what is told as well: two independent "
    "statements, which must agree",
    DERIVED: "computed from other columns by whoever wrote the table",
    FACT: "repeats the settings, the workload, or run.json, and must agree with it",
}
"""Each role of a column, and its meaning."""

ROWS, RUNS = "rows", "runs"


@dataclass(frozen=True)
class Column:
    """A column: its name, Arrow type, meaning (unit included), and role.

    `evidence` is what a run must have (`kvscope.tables.evidence`) for the column to be known, and
    judged. `null` says whether the column may be null though a run has it: ROWS, in any row; RUNS,
    in all rows of a run or in none; '', never. A column of tentative tokens, which a pass computes
    before it is known whether they are right, names as `kept` the column that counts the right
    ones. The others leave the cache after the pass. `words` are the allowed texts (any if empty),
    and `least` is the smallest allowed number.
    """

    name: str
    type: pa.DataType
    meaning: str
    role: str
    evidence: tuple[str, ...] = ()
    null: str = ""
    kept: str = ""
    words: tuple[str, ...] = ()
    least: int = 0

    @property
    def can_lack(self) -> bool:
        """Whether the column of a sound run may be null."""
        return bool(self.null or self.evidence)


def _column(
    role: str,
    name: str,
    type_: pa.DataType,
    meaning: str,
    *evidence: str,
    null: str = "",
    kept: str = "",
    words: tuple[str, ...] = (),
    least: int = 0,
) -> Column:
    return Column(name, type_, meaning, role, evidence, null, kept, words, least)


key, told, witnessed, derived, fact = (partial(_column, role) for role in ROLES)
"""A column of each role, by its name, type, meaning, and evidence."""


@dataclass(frozen=True)
class Table:
    """A table: its name, the meaning of a row, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with table name and schema version as metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"meaning": c.meaning}) for c in self.columns],
            metadata={"kvscope.table": self.name, "kvscope.schema_version": str(SCHEMA_VERSION)},
        )

    @property
    def file(self) -> str:
        """The table's file name."""
        return f"{self.name}.parquet"

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]

    @property
    def keys(self) -> list[str]:
        """Names of the columns that together name a row."""
        return [c.name for c in self.columns if c.role == KEY]

    @property
    def tentative(self) -> list[tuple[str, str]]:
        """Each column of tentative tokens, with the column of those of them that are kept."""
        return [(c.name, c.kept) for c in self.columns if c.kept]

    def empty(self) -> pd.DataFrame:
        """A DataFrame without rows, with this table's columns and types."""
        frame: pd.DataFrame = self.schema.empty_table().to_pandas()
        return frame
