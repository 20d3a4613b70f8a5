"""The host tables of a run with the columns that several oracles derive from them.

A *stay* is the time during which the tokens of one row of `batch` are in the cache: from its pass
until the request's next row, or until the request is preempted, finished or aborted.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from kvscope.analyse.records import Records
from kvscope.arraytypes import Bools, Ints
from kvscope.evidence import JOBS, PREFIXES
from kvscope.kv_plan import KvGroup, has_one_block_table
from kvscope.oracle import NONE, Violations
from kvscope.runschema import OTHER_CLOCKS, EngineRecord, ServerRecord
from kvscope.setting_values import ALL_AT_ONCE
from kvscope.tables import BATCH

OF_REQUEST = ["repeat", "request_id"]
OF_PASS = ["repeat", "step"]
AT = {"step": "at"}
NANOSECONDS = 1e-9
TOLERANCE_S = 1e-6
"""Tolerance of comparisons between times that were computed in two ways."""


class RunTables:
    """The tables of a complete run, all repeats together, with derived columns."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.record = records.record
        self.evidence = records.evidence

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the experiment's settings; empty if the run has none."""
        found = self.records.settings.get(name)
        return found if isinstance(found, Mapping) else {}

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
    def steps(self) -> pd.DataFrame:
        """The passes in order, with `end_s` and `before_s`, the end of the previous pass."""
        steps = self.records.steps.sort_values(OF_PASS, ignore_index=True)
        steps["end_s"] = steps["start_s"] + steps["duration_s"]
        steps["before_s"] = steps.groupby("repeat")["end_s"].shift(fill_value=0.0)
        return steps

    @property
    def victims(self) -> pd.DataFrame:
        """The rows of `preemptions` whose event is a preemption."""
        return self.records.preemptions[self.records.preemptions["event"] == "preempt"]

    @property
    def resumptions(self) -> pd.DataFrame:
        """The rows of `preemptions` whose event is a resumption."""
        return self.records.preemptions[self.records.preemptions["event"] == "resume"]

    @cached_property
    def loaded(self) -> pd.DataFrame:
        """The rows of `transfers` of blocks that vLLM's offloading loaded, in order.

        `served_step` is the pass that began with what was loaded; null if the request was aborted.
        """
        rows = self.records.loaded.sort_values(["repeat", "job"], ignore_index=True)
        begun = self.batch.loc[self.batch["loaded_tokens"] > 0, [*OF_REQUEST, "step"]]
        served = first_after(rows.assign(step=rows["step"] - 1), begun.rename(columns=AT))
        return rows.assign(served_step=served)

    @property
    def offloads(self) -> bool:
        """Whether vLLM's offloading stored or loaded blocks, and when that ended is known."""
        return not self.records.jobs.empty and JOBS in self.evidence

    @cached_property
    def batch(self) -> pd.DataFrame:
        """The rows of `batch`, ordered by request and pass, with the request's earlier history.

        `end_tokens` are the request's tokens in the cache after the pass, `sampled_before` the
        output tokens it had before the pass. `previous_step` is the step of the request's previous
        row, `preempted_step` the step whose scheduling last preempted it (-1 if there is none).
        """
        rows = self.records.batch.sort_values([*OF_REQUEST, "step"], ignore_index=True)
        rows["end_tokens"] = rows["context_tokens"] + rows["scheduled_tokens"]
        for tentative, kept in BATCH.tentative:
            given = counts_of(rows[kept]).clip(upper=(rows["sampled_tokens"] - 1).clip(lower=0))
            rows["end_tokens"] += given - counts_of(rows[tentative])
        rows["loaded_tokens"] = counts_of(rows["loaded_tokens"])
        own = rows.groupby(OF_REQUEST)
        rows["sampled_before"] = own["sampled_tokens"].cumsum() - rows["sampled_tokens"]
        rows["previous_step"] = own["step"].shift(fill_value=-1)
        rows["preempted_step"] = last_until(rows, self._victim_steps)
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

    @property
    def _victim_steps(self) -> pd.DataFrame:
        """Repeat, request and step (as `at`) of each preemption."""
        return self.victims[[*OF_REQUEST, "step"]].rename(columns={"step": "at"})

    @cached_property
    def ended(self) -> pd.DataFrame:
        """`at`, indexed by request: the first step after the request was served or aborted."""
        last = self.batch.groupby(OF_REQUEST)["step"].max().rename("at") + 1.0
        ended = self.records.requests[[*OF_REQUEST, "finished_s", "aborted"]].join(
            last, on=OF_REQUEST
        )
        for at, repeat, time_s, aborted in zip(
            ended.index, ended["repeat"], ended["finished_s"], ended["aborted"], strict=True
        ):
            if aborted:
                ended.loc[at, "at"] = self._first_pass_from(repeat, time_s)
        return ended.fillna({"at": np.inf}).set_index(OF_REQUEST)[["at"]]

    @cached_property
    def count_ended(self) -> Ints:
        """The number of requests that had ended, one value a pass."""
        counts, ended = np.zeros(len(self.steps), np.int64), self.ended["at"]
        for repeat, steps in self.steps.groupby("repeat"):
            at = np.sort(ended[ended.index.get_level_values("repeat") == repeat])
            counts[steps.index] = np.searchsorted(at, steps["step"], side="right")
        return counts

    def count_arrived(self, column: str) -> Ints:
        """The number of requests that had arrived by the time in `column`, one value a pass."""
        counts = np.zeros(len(self.steps), np.int64)
        for repeat, steps in self.steps.groupby("repeat"):
            of_repeat = self.records.requests.loc[
                self.records.requests["repeat"] == repeat, "arrival_s"
            ]
            counts[steps.index] = of_repeat.sort_values().searchsorted(steps[column], side="right")
        return counts

    def _first_pass_from(self, repeat: int, time_s: float) -> int:
        starts = self.steps.loc[self.steps["repeat"] == repeat, "start_s"].to_numpy()
        return int(np.searchsorted(starts, time_s - TOLERANCE_S))

    @cached_property
    def stays(self) -> pd.DataFrame:
        """One row a stay: `repeat`, first `step`, `until`, the step after the last."""
        rows = self.batch
        following = rows.groupby(OF_REQUEST)["step"].shift(-1)
        lost_at = first_after(rows, self._victim_steps)
        ended = rows.join(self.ended, on=OF_REQUEST)["at"]
        until = pd.concat([following, lost_at, ended], axis=1).min(axis=1)
        return rows[["repeat", "step"]].assign(until=until)


def last_until(rows: pd.DataFrame, events: pd.DataFrame) -> pd.Series:
    """The last `at` among the events of a row's request up to its step, or -1; one a row."""
    return _nearest(rows, events, "backward").fillna(-1).astype(np.int64)


def first_after(rows: pd.DataFrame, events: pd.DataFrame) -> pd.Series:
    """The first `at` among the events of a row's request after its step, or NaN; one a row."""
    return _nearest(rows.assign(step=rows["step"] + 1), events, "forward")


def _nearest(rows: pd.DataFrame, events: pd.DataFrame, direction: Any) -> pd.Series:
    if events.empty:
        return pd.Series(np.nan, rows.index)
    wanted = rows[[*OF_REQUEST, "step"]].astype({"step": np.int64, "repeat": np.int64})
    known = events.astype({"at": np.int64, "repeat": np.int64})
    found = pd.merge_asof(
        wanted.reset_index().sort_values("step", kind="stable"),
        known.sort_values("at").assign(found=known["at"].astype(float)),
        left_on="step",
        right_on="at",
        by=OF_REQUEST,
        direction=direction,
    )
    return found.set_index("index")["found"].reindex(rows.index)


def differ(one: pd.Series, other: pd.Series) -> Bools:
    """Where two columns differ; nothing differs from nothing."""
    same = (one == other).fillna(False) | (one.isna() & other.isna())
    wrong: Bools = ~same.to_numpy(dtype=bool)
    return wrong


def bad_rows(
    frame: pd.DataFrame, bad: pd.Series | Bools, words: Callable[[Mapping[str, Any]], str]
) -> Violations:
    """One violation a bad row; the first is described by its repeat, pass, request and `words`."""
    at = np.flatnonzero(np.asarray(bad, dtype=bool))
    if not len(at):
        return NONE
    row = {str(name): value for name, value in frame.iloc[int(at[0])].items()}
    names = {"repeat": "repeat", "step": "step", "request_id": "request", "layer": "layer"}
    place = ", ".join(f"{name} {row[key]}" for key, name in names.items() if key in row)
    return Violations(len(at), f"{place}: {words(row)}" if place else words(row))


def combine(*found: Violations) -> Violations:
    """The sum of several violations."""
    return sum(found, NONE)


def counts_of(column: pd.Series) -> pd.Series:
    """A column of counts, 0 where it is null."""
    return column.astype(float).fillna(0).astype(np.int64)


def blocks_of(tokens: pd.Series, block_size: int) -> pd.Series:
    """The number of blocks that hold so many tokens of one request: ⌈tokens / block size⌉."""
    return -(-tokens.astype(np.int64) // block_size)
