"""A run as metrics and oracles see it: tables, settings, expected pass durations.

What else follows from records is a function of them, `kept` as long as they are: `access.trace_of`,
`planned.experiment_of`.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd

from kvscope.tables.copies import IN, INPUTS, KV, OUT
from kvscope.tables.pass_durations import PassDurations
from kvscope.tables.run_data import RunData
from kvscope.tables.runschema import RepeatRecord, RunRecord


class RunView(RunData):
    """The records of a run, or of a single repeat."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings in experiment.yaml; empty if the run has none.

        `planned.confirm_settings` holds them against the run's id.
        """

    @cached_property
    def pass_durations(self) -> PassDurations:
        """Expected durations of passes, estimated over all `timed` repeats of the run."""
        if self.repeat is not None:
            return self.whole.pass_durations
        timed = (frame[frame["repeat"].isin(self.timed)] for frame in (self.steps, self.batch))
        return PassDurations.of(*timed)

    @property
    def depends_on_speed(self) -> bool:
        """Whether requests arrive, are aborted or wait for copies in real time, so that passes
        depend on it.
        """
        workload = self.settings.get("workload") or {}
        later = bool(self.workload["arrival_s"].gt(0).any()) or self.has_followers
        return later or workload.get("timeout_s") is not None or self.copies_in_real_time

    @property
    def copies_in_real_time(self) -> bool:
        """Whether copies ran beside the passes, by a real clock."""
        apart = self.record.engine.copies_awaited is False
        return self.by_clock and apart and not self.jobs.empty

    @property
    def has_followers(self) -> bool:
        """Whether requests come when others have finished."""
        return bool(self.workload["after"].notna().any())

    @property
    def swapped_out(self) -> pd.DataFrame:
        """The rows of `transfers` with K and V that preempted requests lost."""
        return self.transfers[self._of(OUT, KV)]

    @property
    def copied_back(self) -> pd.DataFrame:
        """The rows of `transfers` to the device, which passes began with."""
        return self.transfers[self.transfers["direction"] == IN]

    @cached_property
    def saved(self) -> pd.DataFrame:
        """The rows of `transfers` of activations written through as they were computed."""
        return self.transfers[self._of(OUT, INPUTS)]

    @cached_property
    def moves(self) -> pd.DataFrame:
        """The rows of `transfers` of requests that were preempted or resumed."""
        return self.transfers[~self._of(OUT, INPUTS)]

    @property
    def stored(self) -> pd.DataFrame:
        """The jobs that stored blocks on the host."""
        return self.jobs[self.jobs["direction"] == OUT]

    @property
    def loaded(self) -> pd.DataFrame:
        """The jobs that loaded blocks from the host."""
        return self.jobs[self.jobs["direction"] == IN]

    def _of(self, direction: str, kind: str) -> "pd.Series[bool]":
        rows = self.transfers
        return (rows["direction"] == direction) & (rows["kind"] == kind)

    def valid_repeats(self) -> Iterator[Self]:
        """The repeats that metrics are computed from, which are the `timed` ones."""
        yield from map(self.of_repeat, self.timed)


Found = TypeVar("Found")
View = TypeVar("View", bound=RunData)


def kept(function: Callable[[View], Found]) -> Callable[[View], Found]:
    """A function of records that is computed once for each; its value must not refer to them."""
    values: WeakKeyDictionary[View, Found] = WeakKeyDictionary()

    @wraps(function)
    def of(records: View) -> Found:
        if records not in values:
            values[records] = function(records)
        return values[records]

    return of


def counted_repeats(record: RunRecord) -> list[RepeatRecord]:
    """The entries of `clock.repeats` in run.json of the `timed` repeats."""
    entries = record.clock.repeats
    return [entry for entry in entries if not entry.profiled] or entries
