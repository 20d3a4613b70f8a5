"""The harness that says what a change of the code changes in the shipped studies."""

import json
import sys
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from kvscope.base.layout import experiment_directory, tables_directory
from kvscope.plan.grid import expand

ROOT = Path(__file__).parents[2]
STUDY, OVERRIDES = "quickstart", ["device=modeled"]

pytestmark = [pytest.mark.thorough, pytest.mark.packages]


@pytest.fixture(scope="module")
def frozen() -> ModuleType:
    spec = spec_from_file_location("frozen_studies", ROOT / "bench" / "frozen.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Runs of all experiments of the study, with two tables each."""
    for number, planned in enumerate(expand(STUDY, OVERRIDES, ROOT / "config").experiments):
        run = experiment_directory(tmp_path, planned.experiment.id)
        for directory in (run, tables_directory(run)):
            directory.mkdir(parents=True)
        (run / "run.done").touch()
        steps = pd.DataFrame({"step": [0, 1, 2], "duration_s": [0.1, float("nan"), number]})
        steps.to_parquet(run / "steps.parquet")
        pd.DataFrame({"value": [float(number)]}).to_parquet(
            tables_directory(run) / "metrics.parquet"
        )
        verdict(run, valid=True)
    return tmp_path


def verdict(run: Path, valid: bool) -> None:
    reasons = [] if valid else [{"name": "blocks_differ", "detail": ""}]
    words = {"valid": valid, "reasons": reasons}
    (tables_directory(run) / "analyse.json").write_text(json.dumps(words))


def run_of(results: Path, place: int) -> Path:
    planned = expand(STUDY, OVERRIDES, ROOT / "config").experiments
    return experiment_directory(results, planned[place].experiment.id)


def differences(frozen: ModuleType, before: object, results: Path) -> list[str]:
    return [*frozen.differences(before, frozen.freeze(STUDY, OVERRIDES, results))]


def test_nothing_differs_from_itself(frozen: ModuleType, results: Path) -> None:
    before = frozen.freeze(STUDY, OVERRIDES, results)
    assert None not in before.experiments.values()
    assert not differences(frozen, before, results)


def test_one_cell_is_named_by_its_experiment_and_column(frozen: ModuleType, results: Path) -> None:
    before = frozen.freeze(STUDY, OVERRIDES, results)
    run = run_of(results, 2)
    steps = pd.read_parquet(run / "steps.parquet")
    steps["duration_s"] += [1e-15, 0.0, 0.0]
    steps.to_parquet(run / "steps.parquet")
    assert differences(frozen, before, results) == [
        f"other tables or verdicts, 1 experiment: {run.name}",
        "other values, 1 column: steps.duration_s",
    ]


@pytest.mark.parametrize(
    ("apart", "digits", "differs"),
    [
        (1e-12, 6, False),
        (1e-12, None, True),
        (1e-4, 6, True),
        (1e-4, None, True),
    ],
)
def test_the_last_digits_of_a_metric_do_not_count(
    frozen: ModuleType, results: Path, apart: float, digits: int | None, differs: bool
) -> None:
    """Nor do values near 0: processors add up in different orders."""
    before = frozen.freeze(STUDY, OVERRIDES, results, digits)
    for place in (0, 2):  # whose metrics are 0 and 2
        path = tables_directory(run_of(results, place)) / "metrics.parquet"
        metrics = pd.read_parquet(path)
        metrics["value"] += apart if place else apart * 1e-3
        metrics.to_parquet(path)
    now = frozen.freeze(STUDY, OVERRIDES, results, digits)
    assert bool([*frozen.differences(before, now)]) == differs


def test_a_verdict_and_a_table_that_is_gone_are_seen(frozen: ModuleType, results: Path) -> None:
    before = frozen.freeze(STUDY, OVERRIDES, results)
    verdict(run_of(results, 0), valid=False)
    (tables_directory(run_of(results, 1)) / "metrics.parquet").unlink()
    (experiments, columns) = differences(frozen, before, results)
    assert experiments.startswith("other tables or verdicts, 2 experiments: ")
    assert columns == "other values, 1 column: metrics.value"


def test_what_only_says_which_run_it_was_is_not_compared(frozen: ModuleType, results: Path) -> None:
    def of_run(sha256: str) -> None:
        metrics = pd.DataFrame({"value": [0.0], "run_sha256": [sha256]})
        metrics.to_parquet(tables_directory(run_of(results, 0)) / "metrics.parquet")

    of_run("a")
    before = frozen.freeze(STUDY, OVERRIDES, results)
    of_run("b")
    assert not differences(frozen, before, results)


def test_where_only_the_verdict_is_known_it_is_compared(frozen: ModuleType, results: Path) -> None:
    before = frozen.freeze(STUDY, OVERRIDES, results)
    before.experiments = dict.fromkeys(before.experiments, "? valid")
    assert not differences(frozen, before, results)
    verdict(run_of(results, 0), valid=False)
    assert differences(frozen, before, results) == [
        f"other tables or verdicts, 1 experiment: {run_of(results, 0).name}"
    ]


def test_only_counts_of_the_first_repeat_of_a_measured_run_are_compared(
    frozen: ModuleType, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()

    def digests(second: int, duration_s: float, tokens: int) -> dict[str, str]:
        steps = {"repeat": [0, 1], "tokens": [tokens, second], "duration_s": duration_s}
        pd.DataFrame(steps).to_parquet(run / "steps.parquet")
        metrics = {"unit": ["s", "tokens"], "value": [duration_s, float(tokens)]}
        pd.DataFrame(metrics | {"metric": "m"}).to_parquet(run / "metrics.parquet")
        pd.DataFrame({"start_ns": [duration_s]}).to_parquet(run / "timeline.parquet")
        return frozen._digests(run, measured=True)

    before = digests(5, 0.1, 7)
    assert {"steps.tokens", "metrics.value"} < set(before)
    assert before == digests(6, 0.2, 7)
    after = digests(5, 0.1, 8)
    assert {name for name in before if before[name] != after[name]} == {
        "steps.tokens",
        "metrics.value",
    }


def test_ids_that_are_new_or_gone_are_named(frozen: ModuleType, results: Path) -> None:
    before = frozen.freeze(STUDY, OVERRIDES, results)
    older = deepcopy(before)
    (first, *_) = before.experiments
    older.experiments["once"] = older.experiments.pop(first)
    assert differences(frozen, older, results)[:2] == [
        "gone, 1 experiment: once",
        f"new, 1 experiment: {first}",
    ]


def test_experiments_that_were_not_run_are_not_compared(frozen: ModuleType, results: Path) -> None:
    before = frozen.freeze(STUDY, OVERRIDES, results)
    (run_of(results, 0) / "run.done").unlink()
    assert not differences(frozen, before, results)


def test_the_shipped_ids_are_those_that_were_frozen(frozen: ModuleType, tmp_path: Path) -> None:
    """Only studies that are planned in less than a second; `compare` plans all."""
    for name in ("quickstart", "quickstart-device-modeled", "victims"):
        text = (frozen.FROZEN / f"{name}.json").read_text(encoding="utf-8")
        before = frozen.Frozen(**json.loads(text))
        now = frozen.freeze(before.study, before.overrides, tmp_path)
        assert not [*frozen.differences(before, now)], name
