"""Reading a run: its record and its tables.

Tables are pandas DataFrames, read when they are first used; docs/TRACE_SPEC.md describes their
columns. BadInput is raised for a file that is damaged, that changed since it was recorded, or that
was computed from another measurement than the run's directory holds now. docs/LIBRARY.md shows how
to use this in a notebook.
"""

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pandas as pd
import pyarrow.parquet as pq

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.layout import MANIFEST, RESULTS, STUDIES, tables_directory
from kvscope.base.time_sources import time_source_of
from kvscope.tables import ANALYSIS_TABLES, HOST_TABLES, Table, accounts, earlier, jobs, runfile
from kvscope.tables.accounts import ANALYSED, COLLECTED
from kvscope.tables.added import AddedTable, JobTable, NoTable, added_tables, job_table
from kvscope.tables.run_data import RunData, of_repeat
from kvscope.tables.runschema import EVIDENCE, JOBS, TRANSFERS, RunRecord

SOURCED = tuple(t for t in (*HOST_TABLES, *ANALYSIS_TABLES) if "time_source" in t.names)
"""The tables of a run whose rows say where their times come from."""


class Run(RunData):
    """One run, whose record and tables are read from its directory.

    `known` are the record, tables and the `tables_directory` given by the caller instead of read,
    and `facts` the JSON object of a record. An attribute raises BadInput, naming the file, if its
    file is missing, damaged, changed or stale.
    """

    def __init__(self, directory: Path, **known: Any) -> None:
        self._directory = directory
        if (facts := known.pop("facts", None)) is not None:
            known["record"] = RunRecord.model_validate(facts)
        self._added: dict[str, pd.DataFrame] = dict(known.pop("added", {}))
        self._known = known
        vars(self).update(known)

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._directory

    @cached_property
    def record(self) -> RunRecord:
        """The contents of run.json, typed."""
        return runfile.read_record(self.directory)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The contents of run.json as a JSON object, which kvscope itself does not read."""
        return self.record.as_written()

    @cached_property
    def evidence(self) -> frozenset[str]:
        """Names of the evidence that its records hold (`kvscope.tables.evidence`)."""
        if self.record.schema_version < EVIDENCE:
            return earlier.evidence_of(self.directory, self.record)
        return frozenset(self.record.evidence)

    @cached_property
    def tables_directory(self) -> Path:
        """The directory of the run's collected tables and metrics."""
        return tables_directory(self.directory)

    @cached_property
    def time_source(self) -> str:
        """The source of its times, by run.json and by its tables (see `time_source_of`)."""
        if self.repeat is not None:
            return self.whole.time_source
        return time_source_of(self.record.time_source, self.table_sources)

    @cached_property
    def table_sources(self) -> frozenset[str]:
        """Time sources that its tables name; tables of another measurement are left out."""
        added = (extra.table for name, extra in added_tables().items() if name in self.added_names)
        sourced = (*SOURCED, *(table for table in added if "time_source" in table.names))
        return frozenset(source for table in sourced for source in self._sources(table))

    # ------------------------------------------------------------------ tables of other packages

    @property
    def added_names(self) -> list[str]:
        """The names of the tables of installed packages that the run has."""
        return [name for name, table in added_tables().items() if self._has(table)]

    def _has(self, added: AddedTable) -> bool:
        """Whether the run has a table of another package, or its rows in another table."""
        files = self.record.files
        if isinstance(added, JobTable) and self.record.schema_version < JOBS:
            return tables.TRANSFERS.file in files
        return added.table.file in files

    def added(self, name: str) -> pd.DataFrame:
        """A table of another package; NoTable (BadInput) if the run has none of that name."""
        if name not in self.added_names:
            names = ", ".join(self.added_names) or "none"
            raise NoTable(
                f"{self.directory}: the run has no table {name!r:.60} of an installed package; "
                f"it has {names}"
            )
        whole = self.whole._added.get(name)
        if whole is None:
            whole = self.whole._added[name] = self._read_added(added_tables()[name])
        return whole if self.repeat is None else of_repeat(whole, self.repeat)

    def read_jobs(self) -> pd.DataFrame:
        """The jobs of all repeats; no rows if the run has no table of them."""
        table = job_table()
        if table is None or table.table.name not in self.added_names:
            return jobs.JOBS.empty()
        return self.added(table.table.name)

    def _read_added(self, added: AddedTable) -> pd.DataFrame:
        if isinstance(added, JobTable) and self.record.schema_version < JOBS:
            self._require_copies_unchanged()
            return earlier.read_jobs(self.directory, self.record)
        return self.read(added.table)

    def _require_copies_unchanged(self) -> None:
        """Check the files that have the copies of a run of an earlier version."""
        since = self.record.schema_version >= TRANSFERS
        having = (tables.TRANSFERS,) if since else (tables.PREEMPTIONS, tables.STEPS)
        names = (table.file for table in having)
        runfile.require_unchanged(self.directory, self.record, *names)

    def of_repeat(self, number: int) -> Self:
        """A view of one repeat, whose tables have only the rows of that repeat."""
        places = {"tables_directory": self.tables_directory}
        view = type(self)(self.directory, record=self.record, **places)
        view.repeat, view._whole = number, self.whole
        return view

    def variant(self, **known: Any) -> Self:
        """A copy of the run in which `known` replaces the record, its `facts`, or tables.

        Those of other packages are in `added`, by name.
        """
        read = {name: frame for name, frame in vars(self).items() if name in tables.TABLES}
        known["added"] = self._added | known.get("added", {})
        return type(self)(self.directory, **{"record": self.record, **self._known, **read, **known})

    # ------------------------------------------------------------------ reading

    def path(self, table: Table) -> Path:
        """The path of a table's file."""
        return (self.directory if self._recorded(table) else self.tables_directory) / table.file

    def _recorded(self, table: Table) -> bool:
        """Whether a table is recorded by the run itself."""
        return table in HOST_TABLES or table.name not in tables.TABLES

    def read_table(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Read a table of all repeats, or some columns of it, by its name."""
        return self.read(tables.TABLES[name], columns)

    def read(self, table: Table, columns: list[str] | None = None) -> pd.DataFrame:
        """Read a table of all repeats, or some columns of it, from its file.

        A host table that the run did not record (after a failure, or without layers) is empty.
        """
        path = self.path(table)
        if table is tables.TRANSFERS and self.record.schema_version < JOBS:
            self._require_copies_unchanged()
            return earlier.read_transfers(self.directory, self.record)
        if self._recorded(table):
            runfile.require_unchanged(self.directory, self.record, path.name)
            if not path.exists():
                return table.empty()
        else:
            account = self.account(ANALYSED if table in ANALYSIS_TABLES else COLLECTED)
            accounts.require_unchanged(self.tables_directory, account, path.name)
        return tables.read(table, path, columns)

    def has_rows(self, name: str) -> bool:
        """Whether a table has rows, by its file's footer where it was not read."""
        path = self.path(tables.TABLES[name])
        if self.repeat is not None or name in vars(self) or not path.exists():
            return super().has_rows(name)
        with tables.reading(path):
            return bool(pq.read_metadata(path).num_rows)

    def _sources(self, table: Table) -> list[str]:
        """The time sources that a table names; empty without the table.

        Files of the run are read as they are, whether or not they changed since.
        """
        frame, column = (
            vars(self).get(table.name, self.whole._added.get(table.name)),
            ["time_source"],
        )
        if frame is None and table in ANALYSIS_TABLES:
            with suppress(BadInput):
                frame = self.read(table, column)
        elif frame is None and self.path(table).exists():
            frame = tables.read(table, self.path(table), column)
        if frame is None or "time_source" not in frame:
            return []
        sources: list[str] = frame["time_source"].dropna().unique().tolist()
        return sources

    def account(self, name: str) -> dict[str, Any]:
        """Read collect.json or analyse.json; StaleResult if made from another measurement."""
        return accounts.read(self.tables_directory, name, self.directory)


def studies(results: Path = RESULTS) -> list[str]:
    """Names of the studies that have a manifest, sorted."""
    return sorted(path.parent.name for path in results.glob(f"{STUDIES}/*/{MANIFEST}"))
