"""A run as analyse reads it: its tables, its settings, its KV events, and what passes take."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from kvscope.analyse.access import Trace, trace_of
from kvscope.analyse.baseline import Baseline
from kvscope.errors import BadInput
from kvscope.plan.documents import load_mapping
from kvscope.plan.repeats import repeats_for_metrics
from kvscope.results import Run
from kvscope.runfile import EXPERIMENT_FILE, FAILED, require_unchanged
from kvscope.tables import HOST_TABLES, LAYERS


class Records(Run):
    """The records of a run, or of one of its repeats."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What experiment.yaml asks for; empty where there is none."""
        path = self.directory / EXPERIMENT_FILE
        require_unchanged(self.directory, self.facts, path.name)
        return load_mapping(path) if path.exists() else {}

    @cached_property
    def trace(self) -> Trace | None:
        """The KV events; None if there are none."""
        if self.repeat is None:
            return trace_of(self.directory, self.facts)
        return self.whole.trace and self.whole.trace.of_repeat(self.repeat)

    @cached_property
    def baseline(self) -> Baseline:
        """What passes take as a rule: in the whole run, of which this may be one repeat."""
        return Baseline(self.steps, self.batch) if self.repeat is None else self.whole.baseline

    @property
    def disturbed(self) -> list[int]:
        """The numbers of the disturbed repeats."""
        return disturbed_repeats(self.facts)

    def valid_repeats(self) -> Iterator[Self]:
        """A view of each repeat that metrics are made of (`plan.repeats.repeats_for_metrics`)."""
        yield from map(self.of_repeat, repeats_for_metrics(self.numbers, self.disturbed))


def disturbances(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What run.json says of the disturbed repeats."""
    return [entry for entry in facts.get("disturbance", []) if entry["disturbed"]]


def disturbed_repeats(facts: dict[str, Any]) -> list[int]:
    """The numbers of the disturbed repeats."""
    return [entry["repeat"] for entry in disturbances(facts)]


def read_records(directory: Path) -> Records:
    """The records of a run's directory.

    BadInput names what is absent, damaged or changed, and says why a run failed that left no
    tables.
    """
    records = Records(directory)
    due = [table for table in HOST_TABLES if table is not LAYERS]
    missing = [path for path in map(records.path, due) if not path.exists()]
    if missing and records.facts["status"] == FAILED:
        reason = records.facts.get("reason") or "no reason recorded"
        raise BadInput(f"{directory}: the run failed and left nothing to analyse ({reason})")
    for table in due:
        getattr(records, table.name)
    if missing:
        raise BadInput(f"{missing[0]}: no such file")
    return records
