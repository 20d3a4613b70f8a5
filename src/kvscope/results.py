"""Reading results: the records and tables of a run, and the metrics of a study.

Tables are pandas DataFrames, read when they are first used; docs/TRACE_SPEC.md describes their
columns. BadInput is raised for a file that is damaged, that changed since it was recorded, or that
was computed from another measurement than the run's directory holds now. docs/LIBRARY.md shows how
to use this in a notebook.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from kvscope import accounts, earlier, runfile, tables
from kvscope.accounts import ANALYSED, COLLECTED
from kvscope.errors import BadInput
from kvscope.files import read_json
from kvscope.layout import (
    MANIFEST,
    RESULTS,
    STUDIES,
    UNFINISHED,
    experiment_directory,
    study_directory,
    tables_directory,
)
from kvscope.runschema import EVIDENCE, TRANSFERS, RunRecord
from kvscope.tables import ANALYSIS_TABLES, COMPARISONS, HOST_TABLES, METRICS, Table
from kvscope.tables.added import AddedTable, NoTable, added_tables
from kvscope.time_sources import BY_CLOCK, time_source_of

SOURCED = tuple(t for t in (*HOST_TABLES, *ANALYSIS_TABLES) if "time_source" in t.names)
"""The tables of a run whose rows say where their times come from."""


def _table(table: Table) -> cached_property[pd.DataFrame]:
    """A lazy attribute of Run: the table, or in a view of one repeat the rows of that repeat."""

    def rows(run: "Run") -> pd.DataFrame:
        if run.repeat is None:
            return run.read(table)
        whole: pd.DataFrame = getattr(run.whole, table.name)
        return of_repeat(whole, run.repeat) if "repeat" in whole else whole

    return cached_property(rows)


def of_repeat(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    """The rows of one repeat: where a table has them together, a slice, which copies nothing."""
    at = np.flatnonzero(frame["repeat"].to_numpy() == number)
    start, stop = (at[0], at[-1] + 1) if len(at) else (0, 0)
    return frame.iloc[start:stop] if stop - start == len(at) else frame.iloc[at]


class Run:
    """One run: run.json as `record`, and each table as an attribute of its name.

    `known` are the record, tables and the `tables_directory` given by the caller instead of read,
    and `facts` the JSON object of a record. An attribute raises BadInput, naming the file, if its
    file is missing, damaged, changed or stale.
    """

    workload = _table(tables.WORKLOAD)
    requests = _table(tables.REQUESTS)
    steps = _table(tables.STEPS)
    batch = _table(tables.BATCH)
    preemptions = _table(tables.PREEMPTIONS)
    transfers = _table(tables.TRANSFERS)
    hits = _table(tables.HITS)
    evictions = _table(tables.EVICTIONS)
    kv_groups = _table(tables.KV_GROUPS)
    layers = _table(tables.LAYERS)
    kv_events = _table(tables.KV_EVENTS)
    kv_kernels = _table(tables.KV_KERNELS)
    nvtx_ranges = _table(tables.NVTX_RANGES)
    cuda_api = _table(tables.CUDA_API)
    gpu_kernels = _table(tables.GPU_KERNELS)
    gpu_memcpys = _table(tables.GPU_MEMCPYS)
    timeline = _table(tables.TIMELINE)
    metrics = _table(tables.METRICS)
    repeat_metrics = _table(tables.REPEAT_METRICS)

    def __init__(self, directory: Path, **known: Any) -> None:
        self.directory = directory
        if (facts := known.pop("facts", None)) is not None:
            known["record"] = RunRecord.model_validate(facts)
        self._added: dict[str, pd.DataFrame] = dict(known.pop("added", {}))
        self.repeat: int | None = None
        self._whole: Self | None = None
        self._known = known
        vars(self).update(known)

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
        """What its records hold (`kvscope.evidence`)."""
        if self.record.schema_version < EVIDENCE:
            return earlier.evidence_of(self.directory, self.record)
        return frozenset(self.record.evidence)

    @cached_property
    def tables_directory(self) -> Path:
        """The directory of the run's collected tables and metrics."""
        return tables_directory(self.directory)

    @cached_property
    def time_source(self) -> str:
        """Where its times come from, by run.json and by its tables (see `time_source_of`)."""
        if self.repeat is not None:
            return self.whole.time_source
        return time_source_of(self.record.time_source, self.table_sources)

    @cached_property
    def table_sources(self) -> frozenset[str]:
        """What its tables say of that; those of another measurement are left out."""
        return frozenset(source for table in SOURCED for source in self._sources(table))

    @property
    def by_clock(self) -> bool:
        """Whether its times are of a real clock, measured or rehearsed."""
        return self.time_source in BY_CLOCK

    @property
    def block_size(self) -> int:
        """Tokens per block of the KV cache; 0 if not known."""
        return self.record.engine.block_size

    @property
    def block_bytes(self) -> float:
        """Bytes of a block of the KV cache, all layers; NaN if not known."""
        return float(self.record.engine.block_bytes or math.nan)

    @cached_property
    def served(self) -> pd.DataFrame:
        """The rows of `requests` that were completed."""
        return self.requests[~self.requests["aborted"].astype(bool)]

    @property
    def aborted(self) -> pd.DataFrame:
        """The rows of `requests` that were aborted before their last token."""
        return self.requests[self.requests["aborted"].astype(bool)]

    # ------------------------------------------------------------------ tables of other packages

    @property
    def added_tables(self) -> dict[str, AddedTable]:
        """The tables of installed packages that the run has, by name."""
        recorded = self.record.files
        return {name: one for name, one in added_tables().items() if one.table.file in recorded}

    @property
    def added_names(self) -> list[str]:
        """The names of the tables of installed packages that the run has."""
        return list(self.added_tables)

    def added(self, name: str) -> pd.DataFrame:
        """A table of another package; NoTable (BadInput) if the run has none of that name."""
        if (one := self.added_tables.get(name)) is None:
            known = ", ".join(self.added_names) or "none"
            raise NoTable(
                f"{self.directory}: the run has no table {name!r:.60} of an installed package; "
                f"it has {known}"
            )
        whole = self.whole._added.get(name)
        if whole is None:
            whole = self.whole._added[name] = self.read(one.table)
        return whole if self.repeat is None else of_repeat(whole, self.repeat)

    # ------------------------------------------------------------------ repeats

    @property
    def whole(self) -> Self:
        """The whole run, if this is a view of one repeat; otherwise the run itself."""
        return self._whole or self

    def of_repeat(self, number: int) -> Self:
        """A view of one repeat, whose tables have only the rows of that repeat."""
        places = {"tables_directory": self.tables_directory}
        view = type(self)(self.directory, record=self.record, **places)
        view.repeat, view._whole = number, self.whole
        return view

    @property
    def numbers(self) -> list[int]:
        """The numbers of the repeats, in order; [0] for a published trace of kernels alone."""
        numbers = {*self.requests["repeat"], *self.steps["repeat"]}
        return sorted(numbers or ({0} if self.record.tracing else ()))

    @cached_property
    def timed(self) -> list[int]:
        """The numbers of the repeats whose times count: profiled ones only if there are no others.

        A profiled repeat was served under the profiler, after those that are measured. Nothing is
        selected by what else the machine did.
        """
        profiled = {entry.repeat for entry in self.record.clock.repeats if entry.profiled}
        return [number for number in self.numbers if number not in profiled] or self.numbers

    def repeats(self) -> Iterator[Self]:
        """A view of each repeat, in order."""
        yield from map(self.of_repeat, self.numbers)

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
        """Whether a table is one of those that a run records itself."""
        return table in HOST_TABLES or table.name not in tables.TABLES

    def read(self, table: Table, columns: list[str] | None = None) -> pd.DataFrame:
        """Read a table of all repeats, or some columns of it, from its file.

        A host table that the run did not record (after a failure, or without layers) is empty.
        """
        path = self.path(table)
        if table is tables.TRANSFERS and self.record.schema_version < TRANSFERS:
            sources = (tables.PREEMPTIONS.file, tables.STEPS.file)
            runfile.require_unchanged(self.directory, self.record, *sources)
            return earlier.read_transfers(self.directory, self.record)
        if self._recorded(table):
            runfile.require_unchanged(self.directory, self.record, path.name)
            if not path.exists():
                return table.empty()
        else:
            account = self.account(ANALYSED if table in ANALYSIS_TABLES else COLLECTED)
            accounts.require_unchanged(self.tables_directory, account, path.name)
        return tables.read(table, path, columns)

    def _sources(self, table: Table) -> list[str]:
        """The sources that a table names; none of one that is not there.

        Files of the run are read as they are, changed or not: nobody takes their word for more.
        """
        frame, column = vars(self).get(table.name), ["time_source"]
        if frame is None and table in ANALYSIS_TABLES:
            with suppress(BadInput):
                frame = self.read(table, column)
        elif frame is None and self.path(table).exists():
            frame = tables.read(table, self.path(table), column)
        if frame is None or "time_source" not in frame:
            return []
        found: list[str] = frame["time_source"].dropna().unique().tolist()
        return found

    def account(self, name: str) -> dict[str, Any]:
        """Read collect.json or analyse.json; StaleResult if made from another measurement."""
        return accounts.read(self.tables_directory, name, self.directory)


class Study:
    """One study of a results directory: its manifest, experiments, runs and metrics."""

    def __init__(self, name: str, results: Path = RESULTS) -> None:
        self.name = name
        self.results = results
        self.directory = study_directory(results, name)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The study's plan: title, description, varied keys, and its experiments in order."""
        path = self.directory / MANIFEST
        if not path.exists():
            planned = ", ".join(studies(self.results)) or "none"
            raise BadInput(
                f"{path}: no such file; planned studies are {planned}, and `kvscope plan "
                f"study={self.name} --write {self.results}` plans one"
            )
        manifest: dict[str, Any] = read_json(path)
        return manifest

    @property
    def experiments(self) -> pd.DataFrame:
        """One row an experiment, indexed by its id: its label, and the value of each varied key."""
        entries = self.manifest["experiments"]
        rows = [{"label": entry["label"], **entry["varied"]} for entry in entries]
        ids = pd.Index([entry["id"] for entry in entries], name="experiment_id")
        return pd.DataFrame(rows, ids)

    @cached_property
    def runs(self) -> dict[str, Run]:
        """A Run for each experiment, by id; one without results raises BadInput when it is used."""
        ids = [entry["id"] for entry in self.manifest["experiments"]]
        return {id_: Run(experiment_directory(self.results, id_)) for id_ in ids}

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The metrics of all complete experiments, varied keys included, one row per metric.

        BadInput if there are no metrics; StaleResult if a run was measured again since.
        """
        frame = self._read(METRICS)
        for id_, sha256 in frame[["experiment_id", "run_sha256"]].drop_duplicates().to_numpy():
            run = experiment_directory(self.results, id_)
            if runfile.run_sha256(run) != sha256:
                raise accounts.StaleResult(
                    f"{self.directory} was made from another measurement of {id_} than {run} holds "
                    f"now; {self._remedy}"
                )
        return frame

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """The ratio of each metric of two experiments that differ in one key, with its interval.

        BadInput if there are none; StaleResult if a run was measured again since.
        """
        _ = self.metrics  # of the same measurements
        return self._read(COMPARISONS)

    @property
    def _remedy(self) -> str:
        return f"make it with `kvscope report {self.name} --results {self.results}`"

    def _read(self, table: Table) -> pd.DataFrame:
        """A table of the report; of the unfinished study if there is none of the whole."""
        path = self.directory / table.file
        if not path.exists() and (partial := self.directory / UNFINISHED / table.file).exists():
            path = partial
        if not path.exists():
            _ = self.manifest  # raises BadInput that lists the planned studies, if this is not one
            raise BadInput(f"{path}: no such file; {self._remedy}")
        return tables.read(table, path)


def studies(results: Path = RESULTS) -> list[str]:
    """Names of the studies that have a manifest, sorted."""
    return sorted(path.parent.name for path in results.glob(f"{STUDIES}/*/{MANIFEST}"))
