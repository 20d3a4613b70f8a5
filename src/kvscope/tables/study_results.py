"""Reading the results of a study: its plan, its runs and its metrics (docs/LIBRARY.md)."""

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.base.layout import (
    MANIFEST,
    RESULTS,
    UNFINISHED,
    experiment_directory,
    study_directory,
)
from kvscope.tables import COMPARISONS, METRICS, Table, accounts, runfile
from kvscope.tables.results import Run, studies


class Study:
    """A study of a results directory: its manifest, experiments, runs and metrics."""

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
        """A table of the report, or of the unfinished study's report if the whole has no table."""
        path = self.directory / table.file
        if not path.exists() and (partial := self.directory / UNFINISHED / table.file).exists():
            path = partial
        if not path.exists():
            _ = self.manifest  # raises BadInput that lists the planned studies, if this is not one
            raise BadInput(f"{path}: no such file; {self._remedy}")
        return tables.read(table, path)
