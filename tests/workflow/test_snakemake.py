"""The whole path on real Snakemake and real vLLM: a study of two small experiments."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rocrate.rocrate import ROCrate

from kvscope.api.report import load, summary
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json, sha256_of

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).parents[2]
STUDY = """
title: Two experiments
description: For the tests.
figures: [throughput]
grids:
  - name: two
    set:
      model: tiny-llama
      profiler: none
      repeats: 2
      warmup: 0
      engine.max_model_len: 128
      engine.max_num_batched_tokens: 128
      workload.prompt_tokens: 32
      workload.output_tokens: 16
      cache.blocks: 32
    product:
      workload.num_requests: [2, {second}]
"""

LOUD = ("--quiet", "host")  # the profile leaves out which jobs there are, too


class Checkout:
    """A copy of the workflow with a results directory of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.more: dict[str, str] = {}  # of the environment
        path.mkdir(parents=True, exist_ok=True)
        for name in ("Snakefile", "workflow", "config", "profiles"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, path / name)
        self.write_study(4)

    def write_study(self, second: int, name: str = "two") -> None:
        file = self.path / "config" / "study" / f"{name}.yaml"
        file.write_text(STUDY.format(second=second), encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        here = str(Path(sys.executable).parent)
        return os.environ | {"PATH": f"{here}:{os.environ['PATH']}"} | self.more

    @property
    def warm(self) -> dict[str, str]:
        """The environment in which commands are forks, which take no signal."""
        return self.environment | {"KVSCOPE_WARM_COMMANDS": "1"}

    def command(self, *words: str, study: str = "two", more: Sequence[str] = ()) -> list[str]:
        profile = ["--profile", "profiles/local", *words, "--config", f"study={study}", *more]
        return [sys.executable, "-m", "snakemake", *profile]

    def snakemake(
        self, *words: str, study: str = "two", more: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, study=study, more=more),
            cwd=self.path,
            env=self.warm,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def runs(self) -> dict[str, int]:
        """When each run that is there was finished."""
        paths = (self.path / "results" / "experiments").glob("*/run.json")
        return {file.parent.name: file.stat().st_mtime_ns for file in paths}

    def page(self, study: str = "two") -> Path:
        return self.path / "results" / "studies" / study / "report.html"

    def unfinished(self, study: str = "two") -> str:
        """The page of a study that is not finished."""
        page = self.path / "results" / "studies" / study / "unfinished" / "report.html"
        return page.read_text(encoding="utf-8")

    def kvscope(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvscope.cli", *words],
            cwd=self.path,
            env=self.warm,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def state(self, study: str = "two") -> str:
        """State of a study: which experiments have results, and why others have none."""
        return "\n".join(summary(load([study], self.path / "results")))

    def measurements(self) -> dict[str, str]:
        """Identity of each finished run's measurement: the SHA-256 of its run.json."""
        paths = (self.path / "results" / "experiments").glob("*/run.json")
        return {file.parent.name: sha256_of(file) for file in paths}

    def ids(self, study: str = "two") -> list[str]:
        """Present experiments of a study; files may be left of earlier ones."""
        manifest = read_json(self.page(study).parent / "manifest.json")
        return [entry["id"] for entry in manifest["experiments"]]

    def assert_true(self, study: str = "two") -> None:
        """Every number of the study's page is of the measurement that is there now."""
        metrics = pd.read_parquet(self.page(study).parent / "metrics.parquet")
        shown = metrics.groupby("experiment_id")["run_sha256"].unique()
        now = self.measurements()
        expected = {name: [now[name]] for name in self.ids(study)}
        assert {name: list(shas) for name, shas in shown.items()} == expected
        assert not list(self.path.glob("results/experiments/*/attempt"))
        assert not list(self.path.glob("results/**/.*.tmp"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, require, forked) -> Checkout:
    """The study, run once."""
    require("Snakemake", find_spec("snakemake") is not None, "run `make env`")
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout
    return checkout


@pytest.mark.representative
def test_a_study_becomes_a_page(finished):
    page = finished.page().read_text(encoding="utf-8")
    assert len(finished.runs()) == 2
    assert all(experiment_id in page for experiment_id in finished.runs())


@pytest.mark.representative
def test_a_second_run_does_nothing(finished):
    before, page = finished.runs(), finished.page().stat().st_mtime_ns
    done = finished.snakemake()
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout
    assert (finished.runs(), finished.page().stat().st_mtime_ns) == (before, page)


def test_a_changed_value_reruns_only_experiments_that_it_changes(finished):
    before = finished.runs()
    finished.write_study(3)
    try:
        done = finished.snakemake()
        assert done.returncode == 0, done.stdout
        after = finished.runs()
        assert len(after) == 3
        assert {name: after[name] for name in before} == before
        (new,) = set(after) - set(before)
        assert new in finished.page().read_text(encoding="utf-8")
    finally:
        finished.write_study(4)


def test_a_comment_in_a_study_reruns_nothing(finished):
    before = finished.runs()
    file = finished.path / "config" / "study" / "two.yaml"
    file.write_text(file.read_text() + "# a thought\n")
    assert finished.snakemake().returncode == 0
    assert finished.runs() == before


def test_a_killed_workflow_resumes_where_it_was(finished, tmp_path):
    checkout = Checkout(tmp_path)
    process = subprocess.Popen(
        checkout.command(),
        cwd=checkout.path,
        env=checkout.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 180
    while len(before := repeats_so_far(checkout)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)  # its jobs live on for a while, as after a lost login
    process.wait()
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout
    for name, repeats in before.items():
        run = read_json(checkout.path / "results" / "experiments" / name / "run.json")
        assert run["clock"]["repeats"][: len(repeats)] == repeats, "a repeat was measured again"
    checkout.assert_true()
    assert_times_are_in_order(ROCrate(checkout.page().parent))


def repeats_so_far(checkout: Checkout) -> dict[str, list[dict[str, Any]]]:
    """The repeats of the measurements under way, by experiment."""
    result = {}
    for file in checkout.path.glob("results/experiments/*/attempt/session.json"):
        with suppress(BadInput):  # it has ended meanwhile
            result[file.parents[1].name] = read_json(file)["clock"]["repeats"]
    return {name: repeats for name, repeats in result.items() if repeats}


# A policy of another package, which fails as long as a file says so.
FICKLE = """
from pathlib import Path

from kvscope.engine.overflow.recompute import Recompute


class Fickle(Recompute):
    def engine_arguments(self, host_blocks):
        if Path("{flag}").exists():
            raise RuntimeError("the policy is broken")
        return super().engine_arguments(host_blocks)
"""


class Failing(Checkout):
    """A study of two experiments, one with a policy that fails while `broken` is there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / "checkout")
        package = path / "package"
        (package / "fickle-0.1.dist-info").mkdir(parents=True)
        (package / "fickle-0.1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: fickle\nVersion: 0.1\n"
        )
        (package / "fickle-0.1.dist-info" / "entry_points.txt").write_text(
            "[kvscope.overflow]\nfickle = fickle:Fickle\n"
        )
        self.broken = path / "broken"
        (package / "fickle.py").write_text(FICKLE.format(flag=self.broken))
        self.more["PYTHONPATH"] = f"{package}:{os.environ.get('PYTHONPATH', '')}"

    def write_study(self, second: int, name: str = "two") -> None:
        study = STUDY.format(second=second).replace(
            f"workload.num_requests: [2, {second}]", "overflow: [recompute, fickle]"
        )
        (self.path / "config" / "study" / f"{name}.yaml").write_text(study)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory, finished: Checkout) -> Failing:
    """The study with a policy that fails, not run yet."""
    return Failing(tmp_path_factory.mktemp("failing"))


@pytest.fixture
def mended(failing: Failing) -> Failing:
    """The study after its policy was mended and all of it was run."""
    failing.broken.unlink(missing_ok=True)
    done = failing.snakemake()
    assert done.returncode == 0, done.stdout
    return failing


def test_a_study_that_failed_is_retried_and_its_page_is_true_at_each_point(failing):
    failing.broken.touch()
    done = failing.snakemake()
    assert done.returncode == 1, done.stdout
    assert not failing.page().exists()
    assert "the policy is broken" in failing.unfinished()
    assert "2 experiments, 1 complete" in done.stdout
    (good,) = (name for name in failing.runs() if "fickle" not in name)
    before = failing.runs()
    again = failing.snakemake()  # nothing mended
    assert again.returncode == 1
    assert failing.runs()[good] == before[good]
    assert "the policy is broken" in failing.unfinished()
    failing.broken.unlink()
    mended = failing.snakemake()
    assert mended.returncode == 0, mended.stdout
    assert failing.runs()[good] == before[good]
    assert not failing.page().with_name("unfinished").exists()
    failing.assert_true()
    assert "Nothing to be done" in failing.snakemake().stdout


def test_a_measurement_that_fails_does_not_replace_the_one_before(mended):
    before = mended.measurements()
    mended.broken.touch()
    done = mended.snakemake("-R", "run_experiments")
    assert done.returncode == 1, done.stdout
    after = mended.measurements()
    changed = {name for name in before if after[name] != before[name]}
    assert [name for name in before if "fickle" in name] == [*(set(before) - changed)]
    assert not mended.page().exists()
    assert "measuring it again failed" in mended.unfinished()
    mended.broken.unlink()
    assert mended.snakemake().returncode == 0  # requested, and not there yet
    last = mended.measurements()
    assert {name for name in after if last[name] != after[name]} == set(before) - changed
    mended.assert_true()


def test_a_measurement_that_fails_by_hand_is_made_up_for_or_dropped(mended):
    before = mended.measurements()
    (name,) = (name for name in before if "fickle" in name)
    experiment = f"results/experiments/{name}/experiment.yaml"
    mended.broken.touch()
    assert mended.kvscope("run", experiment, "--force").returncode == 1
    assert "measuring it again failed" in mended.state()
    assert "run_experiments" in mended.snakemake("-n").stdout  # it would be tried again
    dropped = mended.snakemake(more=["remeasure=none"])
    assert dropped.returncode == 0, dropped.stdout
    assert mended.measurements() == before
    mended.assert_true()
    assert mended.kvscope("run", experiment, "--force").returncode == 1
    mended.broken.unlink()
    made_up = mended.snakemake()
    assert made_up.returncode == 0, made_up.stdout
    assert mended.measurements()[name] != before[name]
    mended.assert_true()


def interrupted(checkout: Checkout, number: int, when: str) -> int:
    """Start the workflow, signal it and its jobs once `when` matches a file; its exit code."""
    process = subprocess.Popen(
        checkout.command(),
        cwd=checkout.path,
        env=checkout.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not list(checkout.path.glob(when)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, number)
    return process.wait(timeout=600)


# A file that is there at the moment of each interruption, one stage after the other.
MOMENTS = {
    signal.SIGINT: (
        "results/experiments/*/attempt/.session.lock",
        "results/experiments/*/run.json",
        "results/tables/*/collect.json",
        "results/studies/two/experiments.csv",
    ),
    signal.SIGKILL: (
        "results/experiments/*/attempt/session.json",
        "results/tables/*/nvtx_ranges.parquet",
        "results/tables/*/metrics.parquet",
    ),
}


@pytest.mark.parametrize("number", MOMENTS, ids=["Ctrl-C", "kill -9"])
def test_an_interrupted_study_ends_as_one_that_was_not(finished, tmp_path, number):
    checkout = Checkout(tmp_path)
    before: dict[str, Any] = {}
    study = STUDY.format(second=4).replace("[2, 4]", "[2]")
    (tmp_path / "config" / "study" / "two.yaml").write_text(study)
    for moment in MOMENTS[number]:
        assert interrupted(checkout, number, moment) != 0
        assert checkout.measurements().items() >= before.items(), "something was measured twice"
        before = checkout.measurements()
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout
    assert checkout.measurements().items() >= before.items(), "something was measured twice"
    checkout.assert_true()
    assert not checkout.page().with_name("unfinished").exists()


def test_a_run_measured_again_by_hand_makes_its_numbers_stale_until_the_workflow_ran(finished):
    (name, *others) = sorted(finished.ids())
    before = finished.measurements()
    experiment = f"results/experiments/{name}/experiment.yaml"
    done = finished.kvscope("run", experiment, "--force")
    assert done.returncode == 0, done.stdout
    refused = finished.kvscope("report", "two")
    assert refused.returncode == 1
    assert f"{name}/analyse.json was made from another measurement" in refused.stdout
    assert finished.kvscope("check", f"results/experiments/{name}").returncode == 1
    assert finished.snakemake().returncode == 0
    finished.assert_true()
    assert all(finished.measurements()[other] == before[other] for other in others)


def test_invalid_runs_are_measured_again_on_demand(finished):
    assert finished.snakemake().returncode == 0
    before = finished.measurements()  # not warm, so no run is valid
    dry = finished.snakemake("-n", more=["remeasure=invalid"])
    assert "run_experiments" in dry.stdout
    assert finished.measurements() == before
    assert "Nothing to be done" in finished.snakemake().stdout
    done = finished.snakemake(more=["remeasure=invalid"])
    assert done.returncode == 0, done.stdout
    after = finished.measurements()
    assert all(after[name] != before[name] for name in finished.ids())
    assert "2 complete, 0 valid" in done.stdout
    assert "no_warm_up" in done.stdout
    finished.assert_true()
    assert "Nothing to be done" in finished.snakemake().stdout


def test_all_is_made_again_by_force(finished):
    before = finished.measurements()
    assert finished.snakemake("-F").returncode == 0
    after = finished.measurements()
    assert all(after[name] != before[name] for name in finished.ids())
    finished.assert_true()


def test_an_experiment_whose_records_are_damaged_is_named_and_made_up_for(finished):
    before = finished.measurements()
    name = sorted(finished.ids())[0]
    file = finished.path / "results" / "experiments" / name / "requests.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    assert "requests.parquet" in finished.state()
    refused = finished.kvscope("report", "two")
    assert refused.returncode == 1
    assert "requests.parquet" in refused.stdout
    (finished.path / "results" / "tables" / name / "analyse.json").unlink()
    done = finished.snakemake()  # it can be analysed no more, so it is measured
    assert done.returncode == 0, done.stdout
    after = finished.measurements()
    assert {each for each in before if after[each] != before[each]} == {name}
    finished.assert_true()


def test_a_finished_study_is_a_research_object(finished):
    home = finished.page().parent
    crate = ROCrate(home)
    assert crate.mainEntity.id == "Snakefile"
    actions = {action.id.lstrip("#"): action for action in crate.root_dataset["mentions"]}
    assert set(finished.ids()) < set(actions)
    for id_ in finished.ids():
        assert actions[id_]["instrument"]["name"] == "kvscope run"
    assert_times_are_in_order(crate)
    described = {file.id: file for file in crate.data_entities if "sha256" in file.properties()}
    assert {"report.html", "metrics.parquet", "experiments.csv"} < set(described)
    for name, file in described.items():
        assert file["sha256"] == sha256_of(home / name)


def test_a_page_that_an_interrupted_call_left_is_not_the_end_of_the_study(finished):
    before = finished.measurements()
    (marker,) = finished.page().parent.glob("*.done")
    crate = finished.page().with_name("ro-crate-metadata.json")
    marker.unlink()
    crate.unlink()
    done = finished.snakemake()
    assert done.returncode == 0, done.stdout
    assert marker.exists()
    assert crate.exists()
    assert finished.measurements() == before


def assert_times_are_in_order(crate: ROCrate) -> None:
    """The experiments end before their report begins, all within the workflow; then the crate."""
    workflow, *experiments, report = crate.root_dataset["mentions"]
    assert report["endTime"] <= workflow["endTime"] <= crate.root_dataset["datePublished"]
    for one in (*experiments, report):
        assert workflow["startTime"] <= one["startTime"] <= one["endTime"]
    assert all(experiment["endTime"] <= report["startTime"] for experiment in experiments)


def flip(file: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_damage_that_leaves_the_size_is_mended(finished):
    before = finished.measurements()
    name = min(finished.ids())
    flip(finished.path / "results" / "tables" / name / "metrics.parquet")
    assert finished.snakemake().returncode == 0
    finished.assert_true()
    assert finished.measurements() == before
    flip(finished.path / "results" / "experiments" / name / "requests.parquet")
    damaged = finished.state()
    assert "requests.parquet: its content differs" in damaged
    assert "remeasure=invalid" in damaged
    done = finished.snakemake(more=["remeasure=invalid"])
    assert done.returncode == 0, done.stdout
    assert finished.measurements()[name] != before[name]
    finished.assert_true()


def test_a_dry_run_withdraws_no_request(finished):
    before = finished.measurements()
    request = finished.path / "results" / "experiments" / finished.ids()[0] / "measure-again"
    request.touch()
    dry = finished.snakemake("-n", more=["remeasure=none"])
    assert "run_experiments" not in dry.stdout
    assert request.exists()
    assert finished.snakemake(more=["remeasure=none"]).returncode == 0
    assert not request.exists()
    assert finished.measurements() == before


def test_what_is_measured_again_does_not_depend_on_the_target(finished):
    for target in ("report_study", str(finished.page().relative_to(finished.path))):
        dry = finished.snakemake(target, "-n", more=["remeasure=all"])
        assert "run_experiments" in dry.stdout, dry.stdout


def test_overrides_make_a_study_of_their_own(finished):
    before = finished.page().stat().st_mtime_ns
    words = ["seed=1,2", "workload.num_requests=2"]
    done = finished.snakemake("-n", more=[f"overrides={' '.join(words)}"])
    assert done.returncode == 0, done.stdout
    planned = json.loads(finished.kvscope("plan", "study=two", *words, "--json").stdout)
    (manifest,) = finished.path.glob("results/studies/two-*/manifest.json")
    ids = [entry["id"] for entry in read_json(manifest)["experiments"]]
    assert ids == [entry["id"] for entry in planned]
    assert finished.page().stat().st_mtime_ns == before
    assert "Nothing to be done" in finished.snakemake().stdout


def test_a_grid_of_the_command_line_that_was_planned_can_be_run(finished):
    words = ["workload.num_requests=1", "repeats=1,2", "warmup=0", "profiler=none"]
    done = finished.kvscope("plan", *words, "--write", "results")
    assert done.returncode == 0, done.stdout
    name = done.stdout.partition("study=")[2].split()[0]
    dry = finished.snakemake("-n", study=name)
    assert dry.returncode == 0, dry.stdout
    assert "run_experiments" in dry.stdout


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("studdy=two", "did you mean 'study'"),
        ("seed=7", "--config overrides='seed=7'"),
        ("remeasure=broken", "must be invalid, all or none"),
        ("overrides=seed", "'seed'"),
    ],
)
def test_an_invalid_option_is_refused_in_one_sentence(finished, word, sentence):
    done = finished.snakemake("-n", more=[word])
    assert done.returncode != 0
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout


def test_an_unknown_study_is_one_sentence(finished):
    done = finished.snakemake(study="nonesuch")
    assert done.returncode != 0
    assert "nonesuch" in done.stdout
    assert "quickstart" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_thousand_experiments_are_planned(finished, tmp_path):
    checkout = Checkout(tmp_path)
    study = STUDY.format(second=4).replace(
        "workload.num_requests: [2, 4]",
        f"workload.num_requests: {list(range(1, 101))}\n      seed: {list(range(10))}",
    )
    (tmp_path / "config" / "study" / "many.yaml").write_text(study)
    done = checkout.snakemake("-n", "--quiet", study="many")
    assert done.returncode == 0, done.stdout
    manifest = read_json(tmp_path / "results" / "studies" / "many" / "manifest.json")
    assert len(manifest["experiments"]) == 1000


@pytest.mark.parametrize("words", [["snakemake", "--lint"], ["snakefmt", "--check", "."]])
def test_the_workflow_is_clean(words, tmp_path, require):
    require(words[0], find_spec(words[0]) is not None, "run `make test`")
    checkout = Checkout(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=checkout.path,
        env=checkout.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
