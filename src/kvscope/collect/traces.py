"""Readers of the KV events of runs, which packages register.

A package registers a `TraceReader` in the entry-point group `kvscope.trace`; at most one is
installed. Without a reader, traced runs cannot be collected or judged; other runs need no reader.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.collect.host_times import duration_ns, instants_ns, require_times
from kvscope.collect.prefetch import prefetch
from kvscope.collect.table_writer import write_batches
from kvscope.tables.oracle import Oracle, Violations, verdict
from kvscope.tables.run_data import RunData
from kvscope.tables.runfile import RUN_FILE
from kvscope.tables.verdict import Verdict

__all__ = [
    "GROUP",
    "Account",
    "Slice",
    "TraceReader",
    "TraceSlices",
    "duration_ns",
    "installed_reader",
    "instants_ns",
    "prefetch",
    "reader_of",
    "require_times",
    "verdicts",
    "write_batches",
]

GROUP = "kvscope.trace"
Account = dict[str, dict[str, Any]]
"""For each oracle, `violations`, the `first` in words, and `looked`: how often it applied."""
Slice = tuple[str, str, int, int]
"""Track and name, start and end in ns since the run's start."""


class TraceSlices(Protocol):
    """Slices of a run's KV events for a Perfetto trace."""

    @property
    def title(self) -> str:
        """The group of their tracks."""

    @property
    def warning(self) -> str | None:
        """Sentence on slices that are left out; None if no slice is."""

    def slices(self) -> Iterator[Slice]:
        """The slices, by track and start, outer slices before inner ones."""


class TraceReader(ABC):
    """Reads the KV events of runs; `oracles` judge them, in the order of the checklist."""

    oracles: ClassVar[tuple[Oracle[Any], ...]]

    @abstractmethod
    def collect(self, run: RunData, out_dir: Path, offset_ns: int | None) -> dict[str, Any]:
        """Write the tables of a run's KV events; return their account for collect.json.

        It has `rows` and the account of the `oracles`. `offset_ns` puts the profiler's clock on the
        host's; None without a profile. BadInput if a file of the run is damaged.
        """

    @abstractmethod
    def judge(self, run: RunData) -> Account:
        """The account of the oracles, from the run's files alone; BadInput if a file is damaged."""

    @abstractmethod
    def slices(self, tables: Path) -> TraceSlices:
        """Slices of the tables in a directory for a Perfetto trace."""


def installed_reader() -> TraceReader | None:
    """The installed reader; BadInput if there are several, or if it cannot be loaded."""
    names = plugins.names(GROUP)
    if len(names) > 1:
        raise BadInput(f"{GROUP} is registered by several packages, {', '.join(names)}; keep one")
    # Its class is abstract.
    return plugins.load(GROUP, names[0], TraceReader) if names else None  # type: ignore[type-abstract]


def reader_of(run: RunData) -> TraceReader:
    """The reader of a traced run; BadInput without an installed reader."""
    if reader := installed_reader():
        return reader
    raise BadInput(
        f"{run.directory / RUN_FILE}: the run has KV events, which no installed package reads; "
        "install kvscope-kernels"
    )


def verdicts(reader: TraceReader, account: Account) -> list[Verdict]:
    """The verdict of every oracle of a reader; not applicable if the account lacks it."""
    verdicts_ = []
    for oracle in reader.oracles:
        entry = account.get(oracle.name)
        result = None
        if entry is not None and (entry.get("looked", 1) or entry["violations"]):
            result = Violations(entry["violations"], entry["first"])
        verdicts_.append(verdict(oracle, result))
    return verdicts_
