"""Columns that some version of Nsight Systems calls otherwise than kvscope knows them.

A package registers a `RenamedColumns` in the entry-point group `kvscope.nsys`, by any name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.collect.nsys import schema

GROUP = "kvscope.nsys"


@dataclass(frozen=True)
class RenamedColumns:
    """Other names of columns that kvscope knows, in one table of an export.

    It stands for the known one where an export has no column of the known name.
    """

    table: str
    others: Mapping[str, str]


def known_columns(table: str, present: set[str]) -> dict[str, str]:
    """The columns of a table by the names that kvscope knows, with their names in the export.

    `present` are the latter. BadInput if a package renames columns of a table that is not read.
    """
    columns = {name: name for name in present}
    for name in plugins.names(GROUP):
        renamed = plugins.load(GROUP, name, RenamedColumns)
        if renamed.table not in schema.READ:
            raise BadInput(
                f"{GROUP} {name} renames columns of {renamed.table!r}, a table that is not read; "
                f"expected one of {', '.join(schema.READ)}"
            )
        if renamed.table == table:
            renames = {known: other for known, other in renamed.others.items() if other in present}
            columns = renames | columns
    return columns
