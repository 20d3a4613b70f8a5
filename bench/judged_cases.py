"""Records that differ from what happened: random edits of a cell, forgeries, faulty recorders.

Forgeries and faulty recorders are those of the project's tests, made of the runs of `judged_runs`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.time_sources import MODELED
from kvscope.judge.records import Records
from kvscope.tables.copies import IN, OUT

Forgery = Callable[[Records], Records]
Judge = Callable[[Records], set[str]]
"""A function that returns the names of the oracles that a run violates."""

NOTHING = "nothing"  # the name of a case that forges nothing
RECORDER = "recorder"  # of faulty recorders
FREE = {("workload", "prompt_token_ids"), ("layers", "duration_s")}
"""Cells that may have another value without a change of a metric or of an important number."""


# --- random edits


@dataclass(frozen=True)
class Edit:
    """A cell of a run with another value."""

    run: str
    table: str
    column: str
    row: int
    before: Any
    after: Any  # None: not a number

    @property
    def name(self) -> str:
        """The edit in words."""
        change = f"{self.before} → {self.after}"
        return f"{self.run}: {self.table}.{self.column}, row {self.row}: {change}"

    def of(self, run: Records) -> Records:
        """The run, edited; BadInput if the cell is not there, or has another value."""
        frame = frame_of(run, self.table)
        if self.column not in frame or self.row >= len(frame):
            raise BadInput(f"{self.name}: this cell is gone")
        values: Any = frame[self.column].astype(object).copy()
        old = values.iloc[self.row]
        if plain(old) != self.before:
            raise BadInput(f"{self.name}: this cell is {plain(old)} now")
        after = np.nan if self.after is None else self.after
        if isinstance(after, list):
            after = np.array(after, np.asarray(old).dtype)
        values.iat[self.row] = after
        edited = frame.assign(**{self.column: values.infer_objects()})
        return with_frame(run, self.table, edited)


def frame_of(run: Records, table: str) -> pd.DataFrame:
    """A table of a run, by kvscope or another package."""
    result: pd.DataFrame = run.added(table) if table in run.added_names else getattr(run, table)
    return result


def with_frame(run: Records, table: str, frame: pd.DataFrame) -> Records:
    """The run with another table in the place of that."""
    known = {"added": {table: frame}} if table in run.added_names else {table: frame}
    return run.variant(**known)


def tables_of(run: Records) -> list[str]:
    """The names of the tables that a run records."""
    return [one.name for one in tables.HOST_TABLES] + run.added_names


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    value = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    return None if isinstance(value, float) and np.isnan(value) else value


NEAR: dict[type, list[Callable[[Any], Any]]] = {
    int: [lambda n: n + 1, lambda n: n - 1],
    float: [lambda x: x * 1.01 + 1e-5, lambda x: x * 0.99 - 1e-5],
}
FAR: dict[type, list[Callable[[Any], Any]]] = {
    int: [lambda n: n + 1, lambda n: 2 * n + 3, lambda n: -1 - n],
    float: [lambda x: x / 2 + 1e-3, lambda x: 10 * x + 1, lambda x: -x - 1, lambda _: np.nan],
}


def draw(runs: Mapping[str, Records], count: int, seed: Sequence[int]) -> Iterator[Edit]:
    """Random edits: half with implausible values, half with plausible ones."""
    random = np.random.default_rng([*seed])
    while count:
        name = str(random.choice(list(runs)))
        run = runs[name]
        known = [one for one in tables_of(run) if len(frame_of(run, one))]
        table = str(random.choice(known))
        frame = frame_of(run, table)
        columns = [c for c in map(str, frame) if frame[c].notna().any() and (table, c) not in FREE]
        column = str(random.choice(columns))
        row = int(random.choice(np.flatnonzero(frame[column].notna())))
        before = plain(frame[column].iloc[row])
        if before == []:
            continue
        yield Edit(name, table, column, row, before, forged(before, frame[column], random))
        count -= 1


def forged(value: Any, column: pd.Series, random: np.random.Generator) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    plausible = random.random() < 0.5
    if isinstance(value, float) and value.is_integer() and not str(column.name).endswith("_s"):
        value = int(value)
    if isinstance(value, int | float):
        near, far = NEAR[type(value)], FAR[type(value)]
        return plain(random.choice([one(value) for one in (near if plausible else far)]))
    if isinstance(value, list):
        place = int(random.integers(len(value)))
        return [*value[:place], forged(value[place], column, random), *value[place + 1 :]]
    known = [one for one in column.dropna() if isinstance(one, str) and one != value]
    known = sorted(set(known)) if plausible else []
    return str(random.choice(known)) if known else f"{value}x"


# --- forgeries


@dataclass(frozen=True)
class Forged:
    """A forgery of a run of `judged_runs`, by its name."""

    run: str
    words: str
    of: Forgery

    @property
    def name(self) -> str:
        """The run and the forgery."""
        return f"{self.run}: {self.words}"


def forgeries(runs: Mapping[str, Records]) -> Iterator[Forged]:
    """Each run as it is, and all forgeries."""
    for name in runs:
        yield Forged(name, NOTHING, lambda run: run)
    yield from _of_tests()
    yield from _of_rows(runs)
    for name in ("native", "native full, chunked", "native full, prefill first"):
        for words, forge in NATIVE.items():
            yield Forged(name, words, forge)


def _of_tests() -> Iterator[Forged]:
    """The forgeries that tests have in lists."""
    import test_modeled_oracles as modeled  # of kvscope-model
    import test_native_oracles as native  # of kvscope-connectors

    from tests.engine import test_conversations, test_forged_hits, test_kv_groups
    from tests.unit import test_table_oracles

    for words, (forge, _) in test_table_oracles.FORGED.items():
        yield Forged("swap, a small pool", f"alike: {words}", forge)
    for words, forge, _ in test_forged_hits.FORGERIES:
        yield Forged("conversations, swap", f"a hit: {words}", forge)
    for words, (forge, _) in test_conversations.FORGED.items():
        yield Forged("conversations, swap", f"a conversation: {words}", forge)
    for words, (forge, _) in native.FORGERIES.items():
        for run in ("native full, chunked", "native full, prefill first"):
            yield Forged(run, f"a job: {words}", forge)
    groups = parameters(test_kv_groups.test_a_forged_group_is_noticed)
    for number, (table, change, _) in enumerate(groups):
        forge = _changed(table, change)
        yield Forged("windows, recompute", f"KV groups, {number}: {table}", forge)
    on = {"swap": "swap, mixed", "activation": "activation", "adaptive": "adaptive"}
    for test in (
        modeled.test_one_kind_of_time_is_not_that_of_the_model,
        modeled.test_scheduling_takes_no_modeled_time,
    ):
        for number, (case, forge, _) in enumerate(parameters(test)):
            yield Forged(on[case], f"{test.__name__}, {number}", forge)


def parameters(test: Any) -> list[Any]:
    """The cases of a parametrized test."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return list(mark.args[1])


def _changed(table: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Forgery:
    return lambda run: with_frame(run, table, change(frame_of(run, table)))


OF_ROWS = (
    *("swap, a small pool", "activation", "prefixes, swap", "conversations, swap"),
    "native full, chunked",
)


def _of_rows(runs: Mapping[str, Records]) -> Iterator[Forged]:
    """Rows that are left out, or there twice."""
    for name in OF_ROWS:
        for table in tables_of(runs[name]):
            rows = len(frame_of(runs[name], table))
            if rows < 3:
                continue
            for row in (0, rows // 2):
                lost = _changed(table, partial(_without, row))
                yield Forged(name, f"row {row} of {table} is left out", lost)
            yield Forged(name, f"the last row of {table} is there twice", _changed(table, _twice))


def _without(row: int, frame: pd.DataFrame) -> pd.DataFrame:
    left: pd.DataFrame = frame.loc[np.arange(len(frame)) != row]
    return left


def _twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[[-1]]], ignore_index=True)


# --- forgeries of runs with vLLM's offloading


def _rows(table: str, query: str, place: int, **columns: Callable[[pd.Series], Any]) -> Forgery:
    """A row of those that a query selects, with other values."""

    def forge(run: Records) -> Records:
        frame = frame_of(run, table).reset_index(drop=True).copy()
        row = frame.query(query).index[place]
        for column, change in columns.items():
            frame.at[row, column] = change(frame.loc[row])
        return with_frame(run, table, frame)

    return forge


def _moved_between_stores(run: Records) -> Records:
    """A loaded block counts for another store."""
    frame = run.jobs.reset_index(drop=True).copy()
    stores = frame[frame["direction"] == OUT]
    given = stores.index[stores["loaded_blocks"] > 0][0]
    room = stores.index[stores["loaded_blocks"] < stores["blocks"]].drop(given, errors="ignore")
    frame.loc[given, "loaded_blocks"] -= 1
    frame.loc[room[0], "loaded_blocks"] += 1
    return with_frame(run, JOBS, frame)


def _exchanged(run: Records) -> Records:
    """Two evictions of a pass have each other's block."""
    frame = run.evictions.reset_index(drop=True).copy()
    own = ["block_position", "owner", "cached_step", "hits", "age_s"]
    for _, rows in frame.groupby(["repeat", "step"]):
        one, other = rows.index[0], rows.index[-1]
        if not frame.loc[one, own].equals(frame.loc[other, own]):
            order = frame.index.to_numpy().copy()
            order[[one, other]] = other, one
            exchanged = {column: frame[column].to_numpy()[order] for column in own}
            return run.variant(evictions=frame.assign(**exchanged))
    raise AssertionError("no pass evicts two blocks")


def _another_evictor(run: Records) -> Records:
    """A block was evicted for another request of its pass."""
    batch = dict(iter(run.batch.groupby(["repeat", "step"])["request_id"]))
    frame = run.evictions.reset_index(drop=True).copy()
    for row in frame.itertuples():
        others = [one for one in batch[row.repeat, row.step] if one != row.request_id]
        if others:
            frame.at[row.Index, "request_id"] = others[-1]
            return run.variant(evictions=frame)
    raise AssertionError("no pass has two requests and evicts a block")


def _relabelled(run: Records) -> Records:
    """The other of vLLM's two ways to offload, under an id that fits the settings."""
    from kvscope.plan.experiment import parse

    own = run.settings["overflow"]
    other = {"native": "native_full", "native_full": "native"}[own["name"]]
    settings = run.settings | {"overflow": own | {"name": other}}
    named = parse({k: v for k, v in settings.items() if k != "id"}, lambda key: "the settings")
    facts = run.facts | {"experiment_id": named.id}
    actions = run.preemptions.assign(policy=run.preemptions["policy"].replace(own["name"], other))
    return run.variant(settings=named.to_dict(), facts=facts, preemptions=actions)


JOBS = "offload_jobs"
LOADS, STORES = f"direction == '{IN}'", f"direction == '{OUT}'"
NATIVE: dict[str, Forgery] = {
    "loaded_blocks moved between stores": _moved_between_stores,
    "two evictions exchanged": _exchanged,
    "another evictor": _another_evictor,
    "relabelled under a new id": _relabelled,
    **{
        f"{words}, {place}": _rows(table, query, place, **columns)
        for place in (0, 2, -1)
        for words, table, query, columns in (
            (
                "awaited_step added",
                JOBS,
                f"{STORES} and awaited_step.isna()",
                {"awaited_step": lambda row: row["step"] + 1},
            ),
            (
                "ordered_s of a load 0.1 ms earlier",
                JOBS,
                LOADS,
                {"ordered_s": lambda row: row["ordered_s"] - 1e-4},
            ),
            (
                "ordered_s of a store 0.1 ms earlier",
                JOBS,
                STORES,
                {"ordered_s": lambda row: row["ordered_s"] - 1e-4},
            ),
            (
                "load_wait_s halved",
                "steps",
                "load_wait_s > 0",
                {"load_wait_s": lambda row: row["load_wait_s"] / 2},
            ),
            (
                "load_wait_s null",
                "steps",
                "load_wait_s.notna()",
                {"load_wait_s": lambda row: np.nan},
            ),
            (
                "an evicted block beyond the cache",
                "evictions",
                "block >= 0",
                {"block": lambda row: 10**6},
            ),
            ("a hit block beyond the cache", "hits", "block >= 0", {"block": lambda row: 10**6}),
            (
                "first_block of a load - 1",
                JOBS,
                f"{LOADS} and first_block > 0",
                {"first_block": lambda row: row["first_block"] - 1},
            ),
            (
                "first_block of a store - 1",
                JOBS,
                f"{STORES} and first_block > 0",
                {"first_block": lambda row: row["first_block"] - 1},
            ),
            ("job another number", JOBS, "job >= 0", {"job": lambda row: 10**6}),
        )
    },
}


# --- faulty recorders


MUTATED = ("recompute, chunked", "swap, mixed")


def mutants(results: Path, judge: Judge) -> Iterator[tuple[str, set[str]]]:
    """Each faulty recorder of two runs, and what `judge` says of its tables."""
    from judged_runs import experiment

    from kvscope.base.layout import experiment_directory
    from tests.engine import mutants

    for name in MUTATED:
        path = experiment_directory(results, experiment(name).id) / "experiment.yaml"
        with (
            patch.object(mutants, "MEASURED", MODELED),
            patch.object(mutants, "judge_tables", lambda run: _verdicts(judge(_untimed(run)))),
        ):
            for fault, names in mutants.main(path).items():
                yield f"{RECORDER}: {name}: {fault}", set(names)


def _untimed(run: Records) -> Records:
    """The run of an engine that times no layers, as that of the modeled device does not."""
    engine = {key: value for key, value in run.facts["engine"].items() if key != "layers"}
    return run.variant(facts=run.facts | {"engine": engine})


def _verdicts(names: set[str]) -> list[Any]:
    from kvscope.tables.verdict import VIOLATED, Verdict

    return [Verdict(name, "", "", VIOLATED) for name in sorted(names)]
