"""A run's host tables as analyse reads them: whole, or one repeat at a time."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope import tables
from kvscope.analyse.access import Trace, trace_of
from kvscope.analyse.baseline import Baseline
from kvscope.errors import BadInput
from kvscope.plan.repeats import counted
from kvscope.runfile import FAILED, read_run, require_unchanged

TABLES = (tables.WORKLOAD, tables.REQUESTS, tables.STEPS, tables.BATCH, tables.PREEMPTIONS)


@dataclass(frozen=True)
class Records:
    """Host tables of a run, or of one of its repeats; and its KV events, if there are any."""

    workload: pd.DataFrame
    requests: pd.DataFrame
    steps: pd.DataFrame
    batch: pd.DataFrame
    preemptions: pd.DataFrame
    block_size: int
    trace: Trace | None = None
    of_run: Baseline | None = None
    disturbed: Collection[int] = ()

    @property
    def baseline(self) -> Baseline:
        """What passes take as a rule: in the whole run, of which this may be one repeat."""
        return self.of_run or Baseline(self.steps, self.batch)

    @property
    def served(self) -> pd.DataFrame:
        """The requests that got all their tokens: those that were not given up."""
        return self.requests[~self.requests["aborted"].astype(bool)]

    @property
    def given_up(self) -> pd.DataFrame:
        """The requests that were aborted before their last token."""
        return self.requests[self.requests["aborted"].astype(bool)]

    @property
    def numbers(self) -> list[int]:
        """The repeats, in order; the one of a trace of kernels alone."""
        numbers = {*self.requests["repeat"], *self.steps["repeat"]}
        return sorted(numbers or ({0} if self.trace else ()))

    def repeats(self) -> Iterator["Records"]:
        """The records of each repeat that metrics are made of (`plan.repeats.counted`)."""
        return self._each(counted(self.numbers, self.disturbed))

    def _each(self, numbers: Collection[int]) -> Iterator["Records"]:
        baseline = self.baseline
        for number in numbers:
            steps = self.steps[self.steps["repeat"] == number]
            yield Records(
                self.workload,
                self.requests[self.requests["repeat"] == number],
                steps,
                self.batch[self.batch["repeat"] == number],
                self.preemptions[self.preemptions["repeat"] == number],
                self.block_size,
                self.trace and self.trace.of_repeat(number),
                baseline,
            )


def disturbed_repeats(facts: dict[str, Any]) -> list[int]:
    """The numbers of the disturbed repeats."""
    return [entry["repeat"] for entry in facts.get("disturbance", []) if entry["disturbed"]]


def read_records(run: Path) -> tuple[dict[str, Any], Records]:
    """run.json and the host tables of a run.

    BadInput names what is absent, damaged or changed, and says why a run failed that left no
    tables.
    """
    facts = read_run(run)
    names = [f"{table.name}.parquet" for table in TABLES]
    if facts["status"] == FAILED and not all((run / name).exists() for name in names):
        reason = facts.get("reason") or "no reason recorded"
        raise BadInput(f"{run}: the run failed and left nothing to analyse ({reason})")
    require_unchanged(run, facts, *names)
    frames = (tables.read(table, run / f"{table.name}.parquet") for table in TABLES)
    workload, requests, steps, batch, preemptions = frames
    size = facts.get("engine", {}).get("block_size", 0)
    trace = trace_of(run, facts)
    disturbed = disturbed_repeats(facts)
    return facts, Records(
        workload, requests, steps, batch, preemptions, size, trace, disturbed=disturbed
    )
