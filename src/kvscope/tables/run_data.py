"""A run as metrics, oracles and figures see it: its record, and each table as a DataFrame.

Where the tables are read from is the business of a subclass: `kvscope.tables.results.Run` reads
files.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from kvscope.base.time_sources import BY_CLOCK
from kvscope.tables.runschema import RunRecord

if TYPE_CHECKING:
    from pathlib import Path


def _table(name: str) -> cached_property[pd.DataFrame]:
    """A lazy attribute: the table, or in a view of one repeat the rows of that repeat."""

    def rows(run: "RunData") -> pd.DataFrame:
        if run.repeat is None:
            return run.read_table(name)
        whole: pd.DataFrame = getattr(run.whole, name)
        return of_repeat(whole, run.repeat) if "repeat" in whole else whole

    return cached_property(rows)


def of_repeat(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    """The rows of one repeat: where a table has them together, a slice, which copies nothing."""
    places = np.flatnonzero(frame["repeat"].to_numpy() == number)
    start, stop = (places[0], places[-1] + 1) if len(places) else (0, 0)
    return frame.iloc[start:stop] if stop - start == len(places) else frame.iloc[places]


def with_jobs(transfers: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """All copies of a run, in the columns of `transfers`."""
    if jobs.empty:
        return transfers
    copies = jobs.assign(rebuild_s=pd.Series(math.nan, jobs.index))[transfers.columns.tolist()]
    return pd.concat([transfers, copies], ignore_index=True) if len(transfers) else copies


class RunData(ABC):
    """A run, or a view of one of its repeats; the tables are attributes of their names.

    Attributes
    ----------
    repeat
        the number of the repeat; None of a whole run
    """

    workload = _table("workload")
    requests = _table("requests")
    steps = _table("steps")
    batch = _table("batch")
    preemptions = _table("preemptions")
    transfers = _table("transfers")
    hits = _table("hits")
    evictions = _table("evictions")
    kv_groups = _table("kv_groups")
    layers = _table("layers")
    kv_events = _table("kv_events")
    kv_kernels = _table("kv_kernels")
    nvtx_ranges = _table("nvtx_ranges")
    cuda_api = _table("cuda_api")
    gpu_kernels = _table("gpu_kernels")
    gpu_memcpys = _table("gpu_memcpys")
    timeline = _table("timeline")
    metrics = _table("metrics")
    repeat_metrics = _table("repeat_metrics")

    repeat: int | None = None
    _whole: Self | None = None

    # ------------------------------------------------------------------ given by a subclass

    @property
    @abstractmethod
    def directory(self) -> "Path":
        """The run's directory."""

    @property
    @abstractmethod
    def tables_directory(self) -> "Path":
        """The directory of the run's collected tables and metrics."""

    @property
    @abstractmethod
    def record(self) -> RunRecord:
        """The contents of run.json, typed."""

    @property
    @abstractmethod
    def evidence(self) -> frozenset[str]:
        """Names of the evidence that its records hold (`kvscope.tables.evidence`)."""

    @property
    @abstractmethod
    def time_source(self) -> str:
        """The source of its times (`kvscope.base.time_sources`)."""

    @property
    @abstractmethod
    def table_sources(self) -> frozenset[str]:
        """Time sources that the rows of its tables name."""

    @abstractmethod
    def read_table(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """The rows of all repeats of a table, or some columns; BadInput if they are unreadable."""

    @abstractmethod
    def read_jobs(self) -> pd.DataFrame:
        """The jobs of all repeats; no rows if the run has no table of them."""

    @abstractmethod
    def added(self, name: str) -> pd.DataFrame:
        """A table of another package; BadInput if the run has none of that name."""

    @property
    @abstractmethod
    def added_names(self) -> list[str]:
        """The names of the tables of installed packages that the run has."""

    @abstractmethod
    def of_repeat(self, number: int) -> Self:
        """A view of one repeat, whose tables have only the rows of that repeat."""

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """The table of jobs, copies beside the passes; empty if the run has none."""
        return self.read_jobs() if self.repeat is None else of_repeat(self.whole.jobs, self.repeat)

    @cached_property
    def copies(self) -> pd.DataFrame:
        """All copies of the run, jobs as well, in the columns of `transfers`."""
        return with_jobs(self.transfers, self.jobs)

    def has_rows(self, name: str) -> bool:
        """Whether a table has rows."""
        return not getattr(self, name).empty

    # ------------------------------------------------------------------ repeats

    @property
    def whole(self) -> Self:
        """The whole run, if this is a view of one repeat; otherwise the run itself."""
        return self._whole or self

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

    # ------------------------------------------------------------------ what follows

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
