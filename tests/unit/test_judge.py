"""The replay of a run: it agrees with what an engine does, and looks at nothing that it says."""

import ast
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kvscope.judge.twin
from kvscope.judge.oracles.replay import comparison_of, differs_from_replay, tables_of
from kvscope.judge.oracles.rules import rules_of
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.oracles.tentative import oracle_of
from kvscope.judge.records import Records, read_records
from kvscope.judge.twin.columns import blocks_of
from kvscope.judge.twin.compare import compare
from kvscope.judge.twin.evidence import NEEDS
from kvscope.judge.twin.host import end_of
from kvscope.judge.twin.requests import InPool
from kvscope.judge.twin.rows import COLUMNS
from kvscope.judge.twin.told import Prompts, told
from kvscope.judge.twin.twin import Twin
from kvscope.tables import BATCH
from kvscope.tables.evidence import ALL, PASSES
from kvscope.tables.phases import DECODE, PREFILL

from .report_fixture import Fake, write_experiment
from .virtual_runs import directory_of

TOLD = {
    "workload": {"request_id", "prompt_tokens", "output_tokens", "arrival_s", "prompt_token_ids"},
    "requests": {"request_id", "arrival_s", "aborted", "finished_s"},
    "steps": {"step", "start_s", "duration_s", "schedule_s", "forward_s"},
    "batch": {"step", "request_id", "scheduled_tokens", "draft_tokens", "accepted_tokens"},
    "preemptions": {
        *("step", "request_id", "event", "time_s", "policy", "refused", "scheduled_tokens"),
        "predicted_s",
    },
    "transfers": {"step", "request_id", "direction", "kind", "copy_s", "rebuild_s"},
    "jobs": set(),
}
"""The columns that the replay of a run of swap may look at."""
KEYS = {"repeat"}


pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Records:
    fake = Fake({"kind": "swap"}, "swap, a small pool", repeats=1)
    return read_records(write_experiment(fake, tmp_path_factory.mktemp("results")))


def replayed(run: Records) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the first repeat by its replay."""
    tables, known = RunTables(run), run.evidence
    prompts = Prompts(run.workload, run.block_size)
    twin = Twin(rules_of(tables), told(tables_of(run.of_repeat(0)), known), prompts, known)
    return {table: list(rows) for table, rows in twin.play().rows.finished().items()}


def scrambled(run: Records) -> Records:
    """The run with every column in disorder that is not told."""
    changed = {}
    for name in COLUMNS:
        frame: pd.DataFrame = getattr(run, name).copy()
        for column in set(frame) - TOLD.get(name, set()) - KEYS:
            values = frame[column].sample(frac=1, random_state=1).to_numpy()
            number = frame[column].dtype.kind in "if"
            frame[column] = values * 3 + 7 if number else values[::-1]
        changed[name] = frame
    return run.variant(**changed)


def test_a_replay_does_not_read_the_values_that_it_computes(run: Records) -> None:
    rows = replayed(run)
    assert len(rows["preemptions"]) > 4
    assert replayed(scrambled(run)) == rows


def test_a_replay_agrees_on_blocks_that_a_host_no_longer_needs() -> None:
    result = read_records(directory_of("swap, aborted"))
    assert (result.preemptions.groupby("request_id")["event"].last() == "preempt").any()
    assert not differs_from_replay(RunTables(result))


@pytest.mark.parametrize(
    "missing", [places for count in range(5) for places in combinations(range(4), count)]
)
def test_a_host_copy_goes_on_up_to_the_first_block_that_it_lacks(missing: tuple[int, ...]) -> None:
    size = 4
    for tokens in range(1, 4 * size + 1):
        for found in range(blocks_of(tokens, size)):
            end = next((at for at in range(found, 4) if at in missing), 4) * size
            kept = InPool(tokens, blocks=4 - len(missing), missing=[*missing])
            assert end_of(kept, found * size, size) == min(tokens, end)


def edited(run: Records, table: str, column: str, row: int, change: Any) -> Records:
    frame: pd.DataFrame = getattr(run, table).copy()
    frame.loc[row, column] = change(frame.loc[row, column])
    return run.variant(**{table: frame})


def test_a_difference_names_the_column_both_values_and_the_place(run: Records) -> None:
    assert not differs_from_replay(RunTables(run))
    used = int(run.steps["kv_blocks_used"].iloc[9])
    result = differs_from_replay(
        RunTables(edited(run, "steps", "kv_blocks_used", 9, lambda n: n + 2))
    )
    assert result.count == 1
    assert result.first == (
        f"steps.kv_blocks_used is {used + 2}, the replay gives {used} (repeat 0, pass 9)"
    )


@pytest.mark.parametrize(
    ("table", "column", "more"), [("steps", "waiting_requests", 1), ("requests", "arrival_s", 1e-3)]
)
def test_too_many_waiting_requests_or_a_late_arrival_differ_from_the_replay(
    run: Records, table: str, column: str, more: float
) -> None:
    result = comparison_of(RunTables(edited(run, table, column, 9, lambda value: value + more)))
    assert f"{table}.{column}" in result.columns


def test_the_earliest_pass_comes_first_and_three_columns_are_named(run: Records) -> None:
    rows = run.batch
    late = edited(run, "steps", "phase", int(run.steps.index[-1]), lambda _: "other")
    lost = late.variant(batch=rows.drop(rows.index[len(rows) // 2]))
    words = differs_from_replay(RunTables(lost)).first
    assert len(words.split("; ")) == 4
    assert re.fullmatch(r"and \d+ more", words.split("; ")[-1])
    passes = [int(at) for at in re.findall(r"pass (\d+)", words)]
    assert passes == sorted(passes)
    assert "phase is other" not in words


@pytest.mark.parametrize(("table", "column"), [(t, c) for t in NEEDS for c in NEEDS[t]])
def test_a_column_is_compared_by_its_evidence_alone(run: Records, table: str, column: str) -> None:
    tables = RunTables(run)
    frame: pd.DataFrame = getattr(run, table)
    if frame.empty or frame[column].isna().all() or column in COLUMNS[table][:2]:
        return
    row = int(frame.index[frame[column].notna()][0])
    changed = edited(run, table, column, row, _another)
    prompts = Prompts(run.workload, run.block_size)
    known = run.evidence
    for lacking in (set(), set(NEEDS[table][column]), {PASSES}):
        repeats = [(0, tables_of(changed.of_repeat(0)))]
        result = compare(repeats, rules_of(tables), known - lacking, prompts)
        noticed = f"{table}.{column}" in result.columns
        told_too = column in TOLD.get(table, ())
        assert (
            noticed == (not lacking) or told_too or (lacking == set(NEEDS[table][column]) == set())
        )


def _another(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


def test_what_needs_evidence_names_kinds_that_there_are() -> None:
    assert {kind for needs in NEEDS.values() for kinds in needs.values() for kind in kinds} <= ALL


MAKERS = re.compile(
    r"import(ed|er)|recorded|recording|server|\bcut\b|schema|version", re.IGNORECASE
)
"""Words that ask who made a run."""


def words_of(module: Path) -> Iterator[str]:
    """The identifiers and string literals of a module, without its docstrings."""
    tree = ast.parse(module.read_text())
    documents = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.alias(name=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)) if node not in documents:
                yield text


def test_a_judge_asks_for_evidence_and_not_who_made_a_run() -> None:
    modules = [*Path(kvscope.judge.twin.__file__).parent.glob("*.py")]
    assert modules
    names = {(m.name, word) for m in modules for word in words_of(m) if MAKERS.search(word)}
    assert names == set()


def with_tentative(run: Records, tokens: int, kept: int, phase: str = DECODE) -> RunTables:
    """The run with tentative tokens in the first pass of a request in a phase; 0 elsewhere."""
    ((tentative, of_these),) = BATCH.tentative
    rows = run.batch.assign(**{tentative: 0, of_these: 0})
    first = rows.index[rows["phase"] == phase][0]
    rows.loc[first, "scheduled_tokens"] += tokens
    rows.loc[first, "sampled_tokens"] += kept
    rows.loc[first, [tentative, of_these]] = tokens, kept
    return RunTables(run.variant(batch=rows))


def test_tentative_tokens_are_computed_and_leave_the_cache_again(run: Records) -> None:
    assert not comparison_of(with_tentative(run, 0, 0)).columns
    rejected = comparison_of(with_tentative(run, 2, 0)).columns
    assert {column for column in rejected if column.startswith("batch")} == set()
    assert "batch.context_tokens" in comparison_of(with_tentative(run, 2, 1)).columns


@pytest.mark.parametrize(
    ("tokens", "kept", "most", "phase", "words"),
    [
        (0, 0, 3, DECODE, ""),
        (3, 3, 3, DECODE, ""),
        (2, 3, 3, DECODE, "3 of 2 drafts right, 3 at most"),
        (4, 0, 3, DECODE, "0 of 4 drafts right, 3 at most"),
        (1, 0, 3, PREFILL, "drafts of a request that does not decode"),
    ],
)
def test_an_oracle_of_tentative_tokens_is_made_of_their_declaration(
    run: Records, tokens: int, kept: int, most: int, phase: str, words: str
) -> None:
    wrong = oracle_of(*BATCH.tentative[0])
    assert wrong.__name__ == "drafts_wrong"
    tables = with_tentative(run, tokens, kept, phase)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "most_tokens", lambda _: most)
        result = wrong(tables)
    assert result.first.endswith(words)
    assert bool(result) == bool(words)


def test_some_token_of_a_request_is_not_tentative(run: Records) -> None:
    ((tentative, kept),) = BATCH.tentative
    rows = run.batch.assign(**{tentative: 0, kept: 0})
    decodes = rows["phase"] == DECODE
    rows.loc[decodes, tentative] = rows.loc[decodes, "scheduled_tokens"]
    tables = RunTables(run.variant(batch=rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "most_tokens", lambda _: 3)
        assert oracle_of(tentative, kept)(tables).count == decodes.sum()


def test_a_judge_names_no_column_of_tentative_tokens() -> None:
    names = {name for pair in BATCH.tentative for name in pair}
    modules = Path(kvscope.judge.twin.__file__).parent.glob("*.py")
    assert not {word for module in modules for word in words_of(module)} & names
