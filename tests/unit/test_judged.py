"""The harness that says what the judges of a run notice no more, or under another name."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.base.errors import BadInput
from kvscope.judge.records import Records, read_records
from kvscope.tables import HOST_TABLES

from .report_fixture import Fake, write_experiment

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def bench() -> Iterator[None]:
    """The programs of bench can be imported."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "bench"))
        yield


@pytest.fixture(scope="module")
def judged(bench: None) -> Any:
    return import_module("judged")


@pytest.fixture(scope="module")
def cases(bench: None) -> Any:
    return import_module("judged_cases")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Records:
    fake = Fake({"kind": "pool"}, "swap, a small pool")
    return read_records(write_experiment(fake, tmp_path_factory.mktemp("results")))


NOTICED = {"an edit": {"blocks_differ", "tokens_differ"}, "another": {"phase_wrong"}, "free": set()}


def changes(judged: Any, **now: set[str]) -> Any:
    after = {name: frozenset(names) for name, names in (NOTICED | now).items()}
    return judged.Changes.of({k: frozenset(v) for k, v in NOTICED.items()}, after)


def test_nothing_differs_from_itself(judged: Any) -> None:
    result = changes(judged)
    assert [*result.lines()] == ["judges: 3 cases compared"]
    assert not result.fails


def test_a_case_that_is_no_longer_noticed_fails(judged: Any) -> None:
    result = changes(judged, another=set())
    assert result.lost == ["another (phase_wrong)"]
    assert result.fails


@pytest.mark.parametrize("name", NOTICED)
def test_a_judge_that_fails_has_noticed_nothing(judged: Any, name: str) -> None:
    result = changes(judged, **{name: {"crash: TypeError"}})
    assert result.crashed == [f"{name} (crash: TypeError)"]
    assert result.fails
    assert not judged.noticed({"crash: TypeError"})


def test_a_newly_noticed_case_is_listed_and_does_not_fail(judged: Any) -> None:
    result = changes(judged, free={"rows"})
    assert result.gained == ["free (rows)"]
    assert not result.fails


def test_other_names_are_counted_by_the_name_that_they_replace(judged: Any) -> None:
    result = changes(judged, **{"an edit": {"differs", "tokens_differ"}, "another": {"differs"}})
    assert result.renamed == {("blocks_differ", "differs"): 1, ("phase_wrong", "differs"): 1}
    result = changes(judged, **{"an edit": {"tokens_differ"}})
    assert result.renamed == {("blocks_differ", "(others of them)"): 1}
    result = changes(judged, another={"phase_wrong", "differs"})
    assert result.renamed == {("(all of them)", "and differs"): 1}
    assert not result.fails


def test_a_case_that_cannot_be_made_and_a_sound_run_that_is_refused_fail(judged: Any) -> None:
    then = {"a run: nothing": frozenset[str](), "gone": frozenset({"rows"})}
    result = judged.Changes.of(then, {"a run: nothing": frozenset({"differs"})})
    assert (result.unsound, result.gone) == (["a run: nothing (differs)"], ["gone"])
    assert result.fails


def test_each_oracle_has_the_count_of_its_cases_that_another_notices(judged: Any) -> None:
    then = {"a": {"old"}, "b": {"old", "older"}}
    assert [*judged.shares(then, {"a": {"new"}, "b": set()}, "new")] == [
        "  old: 1 of 2",
        "    not b",
        "  older: 0 of 1",
        "    not b",
    ]


def test_an_edit_may_be_noticed_by_the_name_of_its_column(judged: Any, cases: Any) -> None:
    edit = cases.Edit("a run", "steps", "start_s", 3, 0.1, 0.2)
    result = [{"new", "steps.start_s"}, {"new", "steps.end_s"}, {"new"}, set[str]()]
    said = judged.places([(edit, frozenset(names)) for names in result], "new")
    assert said == "  of 3 edits noticed, 1 by the name of their column"


def test_an_edit_changes_one_existing_cell(cases: Any, run: Records) -> None:
    edits = [*cases.draw({"fake": run}, 60, (3, 0))]
    assert edits == [*cases.draw({"fake": run}, 60, (3, 0))]
    assert len({edit.table for edit in edits}) > 4
    for edit in edits:
        edited = edit.of(run)
        for table in (one.name for one in HOST_TABLES):
            differs = unequal(getattr(run, table), getattr(edited, table))
            assert differs == ([(edit.row, edit.column)] if table == edit.table else []), edit.name
        with pytest.raises(BadInput, match="this cell is"):
            edit.of(edited)


def unequal(one: pd.DataFrame, other: pd.DataFrame) -> list[tuple[int, str]]:
    """The places of cells that differ."""
    assert list(one) == list(other)
    return [
        (row, str(column))
        for column in one
        for row, (a, b) in enumerate(zip(one[column], other[column], strict=True))
        if not (np.array_equal(a, b) or (pd.api.types.is_scalar(a) and pd.isna(a) and pd.isna(b)))
    ]


def test_what_is_written_is_read(judged: Any, cases: Any, tmp_path: Path) -> None:
    edit = cases.Edit("a run", "steps", "start_s", 3, 0.1 + 0.2, None)
    listed = cases.Edit("a run", "workload", "after", 1, ["0"], ["1"])
    made = judged.Judged(
        [(edit, frozenset({"a", "b"})), (listed, frozenset())], {"forged → so": frozenset({"c"})}
    )
    made.write(tmp_path)
    assert judged.Judged.read(tmp_path) == made
    assert [len(path.read_text().splitlines()) for path in sorted(tmp_path.iterdir())] == [2, 1]


def test_sound_runs_are_frozen_as_sound_and_nearly_all_edits_as_noticed(judged: Any) -> None:
    frozen = judged.Judged.read()
    sound = [name for name in frozen.forgeries if name.endswith(": nothing")]
    assert sound
    assert not any(frozen.forgeries[name] for name in sound)
    assert sum(judged.noticed(names) for _, names in frozen.edits) > 0.95 * len(frozen.edits)
