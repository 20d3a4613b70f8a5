"""Oracles of a run's host tables: they hold of what an engine does, and of nothing forged."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.analyse.oracles.registry import judge_tables, run_of
from kvscope.analyse.oracles.run import Run
from kvscope.analyse.records import read_records
from kvscope.oracle import HELD, NOT_APPLICABLE, VIOLATED

from .report_fixture import Fake, write_experiment

KINDS = {
    "ample": Fake({"kind": "ample"}),
    "recompute": Fake({"kind": "recompute"}, blocks=16),
    "swap": Fake({"kind": "swap"}, blocks=16, overflow="swap", batching="prefill_first"),
    "small pool": Fake({"kind": "pool"}, blocks=16, overflow="swap", host_blocks=7),
    "mixed": Fake({"kind": "mixed"}, blocks=14, batching="mixed", block_size=16, repeats=2),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    results = tmp_path_factory.mktemp("results")
    return {name: read(write_experiment(fake, results)) for name, fake in KINDS.items()}


def read(directory: Path) -> Run:
    return run_of(directory, *read_records(directory))


def violated(run: Run) -> dict[str, str]:
    return {v.name: v.first for v in judge_tables(run) if v.state == VIOLATED}


def with_table(run: Run, name: str, frame: pd.DataFrame) -> Run:
    if name == "layers":
        return replace(run, layers=frame)
    return replace(run, records=replace(run.records, **{name: frame}))


@pytest.mark.parametrize("name", KINDS)
def test_every_oracle_holds_of_what_an_engine_does(name: str, runs: dict[str, Run]) -> None:
    assert violated(runs[name]) == {}


def test_an_oracle_that_has_nothing_to_look_at_says_so(runs: dict[str, Run]) -> None:
    states = {v.name: v.state for v in judge_tables(runs["ample"])}
    assert states["copy_outside_pass"] == NOT_APPLICABLE
    assert states["host_pool_differs"] == NOT_APPLICABLE
    states = {v.name: v.state for v in judge_tables(runs["small pool"])}
    assert states["copy_outside_pass"] == HELD
    assert states["host_pool_differs"] == HELD


# ------------------------------------------------------------------------ every cell matters

# A cell that may have another value, and no metric and no figure of importance changes by it.
FREE = {
    ("workload", "prompt_token_ids"),  # hashed as a whole by run.json
    ("steps", "schedule_s"),  # smaller parts of a pass leave a gap, which may be
    ("steps", "forward_s"),
    ("steps", "time_source"),
    ("preemptions", "time_source"),
}
NAMES = ("workload", "requests", "steps", "batch", "preemptions")


def frame_of(run: Run, name: str) -> pd.DataFrame:
    frame: pd.DataFrame = getattr(run.records, name)
    return frame


def forged(value: Any, random: np.random.Generator) -> Any:
    """Another value of the same kind: a little off, far off, below zero, or none."""
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | np.integer):
        return int(random.choice([value + 1, 2 * value + 3, -1 - value]))
    if isinstance(value, float):
        return float(random.choice([value / 2 + 1e-3, 10 * value + 1, -value - 1, np.nan]))
    return f"{value}x"


@pytest.mark.parametrize("table", NAMES)
def test_any_other_value_in_any_cell_violates_an_oracle(table: str, runs: dict[str, Run]) -> None:
    run, random = runs["small pool"], np.random.default_rng(7)
    frame = frame_of(run, table)
    unnoticed = []
    for column in frame.columns:
        if (table, column) in FREE:
            continue
        known = np.flatnonzero(frame[column].notna())
        for row in random.choice(known, 2):
            values = frame[column].astype(object)
            values.iloc[row] = forged(values.iloc[row], random)
            other = frame.assign(**{column: values.infer_objects()})
            if not violated(with_table(run, table, other)):
                unnoticed.append((column, row, values.iloc[row]))
    assert unnoticed == []


@pytest.mark.parametrize("table", NAMES)
def test_a_row_lost_or_repeated_violates_an_oracle(table: str, runs: dict[str, Run]) -> None:
    run = runs["small pool"]
    frame = frame_of(run, table)
    for row in (0, len(frame) // 2, len(frame) - 1):
        lost = frame.drop(index=frame.index[row])
        assert violated(with_table(run, table, lost)), f"row {row} lost"
        twice = pd.concat([frame, frame.iloc[[row]]], ignore_index=True)
        assert violated(with_table(run, table, twice)), f"row {row} twice"


# ------------------------------------------------------------------------ times of copies


def with_copies(run: Run, wrong: slice, event: str, factor: float) -> Run:
    """The run with the times of some of its copies out, or back, multiplied."""
    column = {"preempt": "swap_out_s", "resume": "swap_in_s"}[event]
    frame = run.records.preemptions.copy()
    rows = frame.index[frame[column].notna()][wrong]
    assert len(rows)
    frame.loc[rows, column] *= factor
    return with_table(run, "preemptions", frame)


@pytest.mark.parametrize("event", ["preempt", "resume"])
def test_copies_take_the_time_that_their_passes_saw(event: str, runs: dict[str, Run]) -> None:
    for factor in (0.1, 0.5, 2):
        found = violated(with_copies(runs["swap"], slice(None), event, factor))
        assert set(found) == {"copy_time_wrong"}


def test_one_copy_may_be_interrupted_before_its_stopwatch_starts(runs: dict[str, Run]) -> None:
    assert violated(with_copies(runs["swap"], slice(1), "preempt", 0.1)) == {}
    assert set(violated(with_copies(runs["swap"], slice(1), "preempt", 2))) == {"copy_time_wrong"}


# ------------------------------------------------------------------------ what was asked for


def asked(run: Run, section: str, **settings: Any) -> Run:
    """The run of an experiment with other settings; None: without them."""
    group = {k: v for k, v in (run.settings[section] | settings).items() if v is not None}
    return replace(run, settings=run.settings | {section: group})


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("cache", {"block_size": 8}),
        ("cache", {"blocks": 17}),
        ("cache", {"blocks": None, "gib": 17.5 * 16 * 4096 / 2**30}),
        ("model", {"layers": 3}),
        ("overflow", {"host_blocks": 199}),
        ("overflow", {"host_blocks": None, "host_gib": 1.0}),
    ],
)
def test_an_engine_is_the_one_that_was_asked_for(
    section: str, settings: dict[str, Any], runs: dict[str, Run]
) -> None:
    made = {"layers": 4, "host_blocks_total": 200} | runs["swap"].engine
    run = replace(runs["swap"], facts=runs["swap"].facts | {"engine": made})
    assert violated(run) == {}
    assert set(violated(asked(run, section, **settings))) == {"engine_differs"}


def test_a_size_in_gib_is_as_many_blocks_as_fit(runs: dict[str, Run]) -> None:
    run = asked(runs["swap"], "cache", blocks=None, gib=16.5 * 16 * 4096 / 2**30)
    assert violated(run) == {}


@pytest.mark.parametrize(
    ("section", "key", "column"),
    [
        ("engine", "max_num_batched_tokens", "scheduled_tokens"),
        ("batching", "chunk_tokens", "scheduled_tokens"),
        ("engine", "max_num_seqs", "requests"),
    ],
)
def test_a_pass_keeps_to_its_limits(
    section: str, key: str, column: str, runs: dict[str, Run]
) -> None:
    run = runs["recompute"]
    most = int(run.steps[column].max())
    assert violated(asked(run, section, **{key: most})) == {}
    assert set(violated(asked(run, section, **{key: most - 1}))) == {"limit_exceeded"}


def test_without_settings_nothing_is_said_of_them(runs: dict[str, Run]) -> None:
    states = {v.name: v.state for v in judge_tables(replace(runs["swap"], settings={}))}
    assert states["engine_differs"] == states["limit_exceeded"] == NOT_APPLICABLE
