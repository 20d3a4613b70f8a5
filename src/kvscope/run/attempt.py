"""Files of a measurement in progress: `session.json` and the tables of the finished repeats.

The measured process writes each table after each repeat and session.json last, so every table has
at least the repeats that session.json counts, whenever the process is killed.
"""

import os
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json, remove_temporaries
from kvscope.tables.added import added_tables
from kvscope.tables.added_values import words_of
from kvscope.tables.runfile import KERNEL_EVENTS, SESSION_FILE


def read_session(directory: Path) -> dict[str, Any]:
    """The contents of session.json; empty before the measured process writes it."""
    path = directory / SESSION_FILE
    return read_json(path) if path.exists() else {}


def repeats_of(session: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the finished repeats in the contents of session.json, in order."""
    entries: list[dict[str, Any]] = (session.get("clock") or {}).get("repeats", [])
    return entries


def keep_whole_repeats(directory: Path, session: dict[str, Any]) -> None:
    """Cut the files of a killed process to the repeats that session.json counts."""
    remove_temporaries(directory)
    repeats = len(repeats_of(session))
    for table in _repeated():
        path = directory / f"{table.name}.parquet"
        if path.exists():
            frame = tables.read(table, path)
            tables.write(table, frame[frame["repeat"] < repeats], path)
    events = directory / KERNEL_EVENTS
    if events.exists():
        os.truncate(events, session.get("kernel_events_bytes", 0))


def require_added_tables(directory: Path) -> None:
    """BadInput if a table of another package cannot be loaded, or read from an attempt."""
    for added in added_tables().values():
        path = directory / added.table.file
        if path.exists() and (complaint := tables.check_file(added.table, path)):
            raise BadInput(
                f"{complaint}: {words_of(added)} has changed since; install the version that wrote "
                "it, or uninstall its package"
            )


def _repeated() -> list[tables.Table]:
    """The tables with rows of each repeat."""
    added = [extra.table for extra in added_tables().values()]
    return [table for table in tables.HOST_TABLES if "repeat" in table.names] + added


def read_repeats(directory: Path, table: tables.Table, count: int) -> list[pd.DataFrame]:
    """The rows of a table for each of so many repeats."""
    path = directory / table.file
    absent = table in tables.OF_SOME_RUNS and not path.exists()
    frame = table.empty() if absent else tables.read(table, path)
    by_repeat = dict(iter(frame.groupby("repeat")))
    return [by_repeat.get(number, frame.iloc[:0]) for number in range(count)]
