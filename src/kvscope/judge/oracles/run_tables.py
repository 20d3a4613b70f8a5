"""The host tables of a run with the columns that several oracles derive from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.base.arraytypes import Bools, Int64s, Ints
from kvscope.base.setting_values import ALL_AT_ONCE
from kvscope.tables.evidence import JOBS, PREFIXES
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_plan import has_one_block_table
from kvscope.tables.oracle import NONE, Violations
from kvscope.tables.run_data import of_repeat
from kvscope.tables.run_view import RunView
from kvscope.tables.runschema import OTHER_CLOCKS, EngineRecord, ServerRecord

Values = npt.NDArray[Any]

OF_REQUEST = ["repeat", "request_id"]
OF_PASS = ["repeat", "step"]
NANOSECONDS = 1e-9
TOLERANCE_S = 1e-6
"""Tolerance of comparisons between times that were computed in two ways."""


class RunTables:
    """The tables of a complete run, all repeats together, with derived columns."""

    def __init__(self, records: RunView) -> None:
        self.records = records
        self.record = records.record
        self.evidence = records.evidence

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the experiment's settings; empty if the run has none."""
        value = self.records.settings.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def server(self) -> ServerRecord | None:
        """The server that was recorded; None where an experiment's settings are known."""
        return self.record.recorded

    def most_tokens(self, column: str) -> int:
        """Tokens of a column of `batch`, at most, by the server's setting of the same name."""
        return self.server.tokens(column) if self.server else 0

    @property
    def by_clock(self) -> bool:
        """Whether times come from a real clock, whose readings never repeat and take time."""
        return self.records.by_clock

    @property
    def has_other_clocks(self) -> bool:
        """Whether run.json is of a version that has other clocks and copies of the warm-up."""
        new = self.record.schema_version >= OTHER_CLOCKS
        return new or any(repeat.apart_s is not None for repeat in self.record.clock.repeats)

    @property
    def repeats_warm_up(self) -> bool:
        """Whether repeats have the same passes as the warm-up: requests that all come at once."""
        if self.records.has_followers:
            return False
        workload = self.section("workload")
        at_once = workload.get("arrival") == ALL_AT_ONCE and workload.get("timeout_s") is None
        return self.has_other_clocks and at_once and not self.records.copies_in_real_time

    @property
    def engine(self) -> EngineRecord:
        """The `engine` section of run.json."""
        return self.record.engine

    @cached_property
    def repeats(self) -> Mapping[int, RunView]:
        """A view of each repeat, by number, in order."""
        return {number: self.records.of_repeat(number) for number in self.records.numbers}

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The passes in order, with `end_s` and `before_s`, the end of the previous pass."""
        steps = self.records.steps.sort_values(OF_PASS, ignore_index=True)
        steps["end_s"] = steps["start_s"] + steps["duration_s"]
        steps["before_s"] = previous(steps["end_s"].to_numpy(), steps["repeat"].to_numpy(), 0.0)
        return steps

    @cached_property
    def passes(self) -> Mapping[int, slice]:
        """The rows of `steps` of each repeat."""
        numbers = self.steps["repeat"].to_numpy()
        return {numbers[passes.start].item(): passes for passes in groups(numbers)}

    def pass_of(self, rows: pd.DataFrame, column: str = "step") -> Int64s:
        """The row of `steps` of the pass that each row of another table names in a column."""
        first = [self.passes[number].start for number in rows["repeat"].tolist()]
        places: Int64s = np.array(first, np.int64) + rows[column].to_numpy(np.int64)
        return places

    @cached_property
    def victims(self) -> pd.DataFrame:
        """The rows of `preemptions` whose event is a preemption."""
        return self.records.preemptions[self.records.preemptions["event"] == "preempt"]

    @cached_property
    def resumptions(self) -> pd.DataFrame:
        """The rows of `preemptions` whose event is a resumption."""
        return self.records.preemptions[self.records.preemptions["event"] == "resume"]

    @property
    def offloads(self) -> bool:
        """Whether jobs stored or loaded blocks, and when they ended is known."""
        return not self.records.jobs.empty and JOBS in self.evidence

    @cached_property
    def batch(self) -> pd.DataFrame:
        """The rows of `batch`, ordered by request and pass; `loaded_tokens` without nulls."""
        rows = self.records.batch.sort_values([*OF_REQUEST, "step"], ignore_index=True)
        rows["loaded_tokens"] = counts_of(rows["loaded_tokens"])
        return rows

    @property
    def caches_prefixes(self) -> bool:
        """Whether the run has a prefix cache, whose blocks are known, by its settings."""
        served = bool(self.server and self.server.prefix_caching)
        caches = bool(self.section("cache").get("prefix_caching", served))
        return caches and PREFIXES in self.evidence

    @cached_property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV groups; empty if they were not recorded."""
        rows = self.records.kv_groups.drop(columns="kv_group").convert_dtypes().astype(object)
        rows = rows.where(rows.notna(), None)
        names = list(map(str, rows))
        return tuple(KvGroup(**dict(zip(names, row, strict=True))) for row in rows.to_numpy())

    @property
    def groups_differ(self) -> bool:
        """Whether a request's blocks do not follow from its tokens and the block size alone."""
        return bool(self.kv_groups) and not has_one_block_table(self.kv_groups)

    @cached_property
    def ended(self) -> Mapping[int, Mapping[str, float]]:
        """The first step after each request was served or aborted, by repeat and request.

        Infinite for one that is in no pass.
        """
        return {number: self._ended(number) for number in self.repeats}

    def _ended(self, number: int) -> Mapping[str, float]:
        rows, requests = of_repeat(self.batch, number), self.repeats[number].requests
        names, steps = rows["request_id"].to_numpy(object), rows["step"].to_numpy()
        last = {names[span.start]: steps[span.stop - 1] + 1.0 for span in groups(names)}
        columns = (requests[name] for name in ("request_id", "finished_s", "aborted"))
        starts_s = of_repeat(self.steps, number)["start_s"].to_numpy()
        return {
            name: float(np.searchsorted(starts_s, ended_s - TOLERANCE_S))
            if aborted
            else last.get(name, math.inf)
            for name, ended_s, aborted in zip(*columns, strict=True)
        }

    @cached_property
    def count_ended(self) -> Ints:
        """The number of requests that had ended, one value a pass."""
        counts, steps = np.zeros(len(self.steps), np.int64), self.steps["step"].to_numpy()
        for repeat, passes in self.passes.items():
            ended = sorted(self.ended[repeat].values())
            counts[passes] = np.searchsorted(ended, steps[passes], side="right")
        return counts

    def count_arrived(self, column: str) -> Ints:
        """The number of requests that had arrived by the time in `column`, one value a pass."""
        counts, times_s = np.zeros(len(self.steps), np.int64), self.steps[column].to_numpy()
        for repeat, passes in self.passes.items():
            arrivals_s = np.sort(self.repeats[repeat].requests["arrival_s"])
            counts[passes] = np.searchsorted(arrivals_s, times_s[passes], side="right")
        return counts


def differ(one: pd.Series, other: pd.Series) -> Bools:
    """Mask of the rows in which two columns differ; two missing values are equal."""
    same = np.asarray(one.to_numpy() == other.to_numpy(), bool)
    return ~same & ~(one.isna() & other.isna()).to_numpy()


def bad_rows(
    frame: pd.DataFrame,
    bad: pd.Series | Bools,
    words: Callable[[Mapping[str, Any]], str],
    **further: Sequence[Any] | Values,
) -> Violations:
    """Violations, one a bad row; the first is described by its repeat, pass, request and `words`.

    `further` are values of each row beside those of the frame.
    """
    places = np.flatnonzero(np.asarray(bad, dtype=bool))
    if not len(places):
        return NONE
    first = int(places[0])
    row = {str(name): value for name, value in frame.iloc[first].items()}
    row |= {name: values[first] for name, values in further.items()}
    names = {"repeat": "repeat", "step": "step", "request_id": "request", "layer": "layer"}
    present = [key for key in names if pd.notna(row.get(key))]  # what a pass saves is of no request
    place = ", ".join(f"{names[key]} {row[key]}" for key in present)
    return Violations(len(places), f"{place}: {words(row)}" if place else words(row))


def combine(*found: Violations) -> Violations:
    """The sum of several violations."""
    return sum(found, NONE)


def counts_of(column: pd.Series) -> pd.Series:
    """A column of counts, 0 where it is null."""
    counts = np.nan_to_num(column.to_numpy(np.float64, na_value=np.nan))
    return pd.Series(counts.astype(np.int64), column.index)


def previous(values: Values, of: Values, fill: Any) -> Values:
    """The value of the row before, where that is of the same group; otherwise `fill`."""
    shifted = np.roll(values, 1)
    shifted[begins(of)] = fill
    return shifted


def groups(of: Values) -> list[slice]:
    """The rows of each group, of rows that are in order of groups."""
    first = np.flatnonzero(begins(of)).tolist()
    return list(map(slice, first, [*first[1:], len(of)]))


def begins(of: Values) -> Bools:
    """Whether each row is the first of its group, of rows that are in order of groups."""
    mask = np.ones(len(of), bool)
    mask[1:] = of[1:] != of[:-1]
    return mask
