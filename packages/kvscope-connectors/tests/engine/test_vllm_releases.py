"""Every release that schedules does it as the others: the same runs, the same plans of caches."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import scheduled_by
from test_dry_and_modeled import MODELED  # of kvscope-model
from test_native_conversations import words_of

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.engine.vllm.versions import ENGINES, SCHEDULING
from kvscope.metrics.experiment import analyse
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.run.environment import measured_environment
from kvscope.tables.runfile import read_run
from tests.conftest import Require
from tests.engine.other_vllm import ROOT, pinned, python_of
from tests.engine.test_dry import DRY, words
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.thorough]

(HERE,) = pinned("cpu.txt")
OTHERS = [release for release in SCHEDULING if release != HERE]
MODELS = ("llama-3.1-8b", "gemma-3-27b")  # of one KV group, and of two
NATIVE = words_of("native", "prefill_first", 2, 0)  # with a prefix cache
CASES = {
    f"{case}, {device[0]}": words(device, case)
    for case in ("recompute, mixed", "swap, chunked")
    for device in (DRY, MODELED)
} | {
    "native, device=modeled": NATIVE,
    "native, device=dry": [word for word in NATIVE if not word.startswith("device")] + [*DRY],
}
FULL_HOST = "native, a full host"
"""Settings with which releases differ: since 0.33 vLLM drops the last blocks of a request first."""
JOBS = "offload_jobs"
ALL = CASES | {FULL_HOST: words_of("native", "mixed", 4, 3)}


@dataclass(frozen=True)
class Made:
    """Results of a release: the run of each case, and the plan of each model."""

    directory: Path

    def run(self, case: str) -> Path:
        return self.directory / case

    def tables(self, case: str) -> dict[str, pd.DataFrame]:
        return {path.stem: pd.read_parquet(path) for path in self.run(case).glob("*.parquet")}

    def plan(self, model: str) -> dict[str, object]:
        plan: dict[str, object] = json.loads((self.directory / f"{model}.json").read_text())
        return plan


def planned(case: str) -> Experiment:
    return expand(None, ALL[case], ROOT / "config").experiments[0].experiment


def jobs(made: Made) -> list[str]:
    """Jobs to run, as `scheduled_by` takes them."""
    files = {case: made.directory / f"{number}.yaml" for number, case in enumerate(ALL)}
    for case, file in files.items():
        file.write_text(dump(planned(case)), encoding="utf-8")
    return [f"{file}\t{made.run(case)}" for case, file in files.items()]


@pytest.fixture(scope="module")
def here(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("here"))
    assert warm.call(scheduled_by.make, made.directory, MODELS, jobs(made)) == 0
    return made


@pytest.fixture(scope="module", params=OTHERS)
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def other(release: str, require: Require, tmp_path_factory: pytest.TempPathFactory) -> Made:
    python, made = python_of(release, require), Made(tmp_path_factory.mktemp("other"))
    own = jobs(made)
    ended = subprocess.run(
        [python, scheduled_by.__file__, str(made.directory), *MODELS],
        input="\n".join(own),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=measured_environment(planned(next(iter(ALL)))),
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return made


def test_every_release_that_schedules_is_tried_here():
    assert ENGINES == (HERE,)
    assert {*OTHERS} <= {*pinned("vllm.txt")}
    assert OTHERS


@pytest.mark.parametrize("case", CASES)
def test_runs_are_the_same_row_by_row(here: Made, other: Made, case: str):
    tables, others = here.tables(case), other.tables(case)
    assert tables.keys() == others.keys()
    for name, table in tables.items():
        pd.testing.assert_frame_equal(others[name], table, obj=name)
    assert len(tables["preemptions"]) > 0, "the cache was not scarce"
    assert (len(tables["transfers"]) > 0) == ("swap" in case)
    assert (len(tables.get(JOBS, ())) > 0) == ("native" in case)
    assert tables["batch"]["hit_tokens"].any() == ("native" in case), "no prefix was found"


def test_behaviours_of_all_releases_with_a_full_host_are_valid(here: Made, other: Made):
    for made in (here, other):
        run = made.run(FULL_HOST)
        assert set(analyse(run, run)["reasons"]) == {""}
    assert len(other.tables(FULL_HOST)[JOBS]) > 0


@pytest.mark.parametrize("case", ALL)
def test_a_run_names_the_vllm_that_made_it(here: Made, other: Made, release: str, case: str):
    for made, own in ((here, HERE), (other, release)):
        _, version = str(read_run(made.run(case))["versions"]["vllm"]).split()
        assert version.startswith(f"{own}.")


@pytest.mark.parametrize("model", MODELS)
def test_caches_are_planned_the_same(here: Made, other: Made, release: str, model: str):
    plan, others = here.plan(model), other.plan(model)
    assert str(plan.pop("vllm")).startswith(f"{HERE}.")
    assert str(others.pop("vllm")).startswith(f"{release}.")
    assert plan == others
