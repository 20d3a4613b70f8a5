"""Runs with forged records, and the oracles' verdicts on them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pandas as pd

from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.oracles.replay import comparison_of
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.records import Records
from kvscope.tables.verdict import VIOLATED

Forgery = Callable[[Records], Records]


def found(run: Records, state: str) -> set[str]:
    return {verdict.name for verdict in judge_tables(run) if verdict.state == state}


def noticed(run: Records) -> set[str]:
    """The oracles that a run violates, and the columns that differ from its replay."""
    return found(run, VIOLATED) | {*comparison_of(RunTables(run)).columns}


def frame_of(run: Records, table: str) -> pd.DataFrame:
    """A table of a run, by kvscope or another package."""
    if table in run.added_names:
        return run.added(table)
    frame: pd.DataFrame = getattr(run, table)
    return frame


def with_frame(run: Records, table: str, frame: pd.DataFrame) -> Records:
    """The run with another table in the place of that."""
    if table in run.added_names:
        return run.variant(added={table: frame})
    return run.variant(**{table: frame})


def scaled(table: str, factor: float, *columns: str) -> Forgery:
    """Columns of a table by a factor, wherever they are."""

    def forge(run: Records) -> Records:
        frame = frame_of(run, table)
        return with_frame(run, table, frame.assign(**{c: factor * frame[c] for c in columns}))

    return forge


def everything(factor: float) -> Forgery:
    """All times, and the clock of run.json."""

    def forge(run: Records) -> Records:
        tables = {}
        for name in ("workload", "requests", "steps", "preemptions", "transfers"):
            frame: pd.DataFrame = getattr(run, name)
            times = [c for c in map(str, frame) if c.endswith("_s")]
            tables[name] = frame.assign(**{c: factor * frame[c].astype(float) for c in times})
        repeats = [
            repeat
            | {
                "start_ns": round(factor * repeat["start_ns"]),
                "duration_s": factor * repeat["duration_s"],
            }
            for repeat in run.facts["clock"]["repeats"]
        ]
        clock = run.facts["clock"] | {"repeats": repeats}
        return run.variant(facts=run.facts | {"clock": clock}, **tables)

    return forge


def moved(table: str, column: str, by_s: float, event: str | None = None) -> Forgery:
    """A column of a table later by some seconds; of `preemptions` in the rows of one event."""

    def forge(run: Records) -> Records:
        frame: pd.DataFrame = getattr(run, table)
        rows = 1.0 if event is None else frame["event"] == event
        return run.variant(**{table: frame.assign(**{column: frame[column] + by_s * rows})})

    return forge


def with_fact(run: Records, place: str, change: Callable[[Any], Any]) -> Records:
    """The run with one fact of run.json, named by its keys with dots, changed."""
    facts: Any = deepcopy(run.facts)
    holder = facts
    *above, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    for key in above:
        holder = holder[key]
    holder[last] = change(holder[last])
    return run.variant(facts=facts)
