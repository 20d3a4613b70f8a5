"""The whole path on real Snakemake and real vLLM: a study of two small experiments."""

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvscope.files import read_json

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).parents[2]
STUDY = """
title: Two experiments
description: For the tests.
grids:
  - name: two
    set:
      model: tiny-llama
      profiler: none
      repeats: 2
      warmup: 1
      engine.max_model_len: 128
      engine.max_num_batched_tokens: 128
      workload.prompt_tokens: 32
      workload.output_tokens: 16
      cache.blocks: 32
    product:
      workload.num_requests: [2, {second}]
"""


class Checkout:
    """A copy of the workflow with a results directory of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
        return os.environ | {"PATH": f"{here}:{os.environ['PATH']}"}

    def command(self, *words: str, study: str = "two") -> list[str]:
        profile = ["--profile", "profiles/local", "--config", f"study={study}"]
        return [sys.executable, "-m", "snakemake", *profile, *words]

    def snakemake(self, *words: str, study: str = "two") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, study=study),
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def runs(self) -> dict[str, int]:
        """When each run that is there was finished."""
        found = (self.path / "results" / "experiments").glob("*/run.json")
        return {file.parent.name: file.stat().st_mtime_ns for file in found}

    def page(self, study: str = "two") -> Path:
        return self.path / "results" / "studies" / study / "report.html"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, require) -> Checkout:
    """The study, run once."""
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    require("Snakemake", find_spec("snakemake") is not None, "run `make env`")
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout
    return checkout


def test_a_study_becomes_a_page(finished):
    page = finished.page().read_text(encoding="utf-8")
    assert len(finished.runs()) == 2
    assert all(experiment_id in page for experiment_id in finished.runs())


def test_a_second_run_does_nothing(finished):
    before, page = finished.runs(), finished.page().stat().st_mtime_ns
    done = finished.snakemake()
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout
    assert (finished.runs(), finished.page().stat().st_mtime_ns) == (before, page)


def test_a_changed_value_reruns_only_what_means_something_else(finished):
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
    while len(checkout.runs()) < 1 or not list(tmp_path.glob("results/experiments/*/.progress*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)  # its jobs live on for a while, as after a lost login
    process.wait()
    before = checkout.runs()
    done = checkout.snakemake()
    assert done.returncode == 0, done.stdout
    after = checkout.runs()
    assert len(after) == 2
    assert {name: after[name] for name in before} == before


def test_one_failing_experiment_does_not_stop_the_others(finished):
    study = STUDY.format(second=5).replace("workload.num_requests: [2, 5]", "seed: [1, 2]")
    study = study.replace("workload.prompt_tokens: 32", "workload: trace")
    study = study.replace("workload.output_tokens: 16", "workload.num_requests: 2")
    study = study.replace("seed: [1, 2]", "workload.path: [good.csv, gone.csv]")
    (finished.path / "config" / "study" / "failing.yaml").write_text(study)
    (finished.path / "good.csv").write_text(
        "prompt_tokens,output_tokens,arrival_s\n20,5,0\n30,6,0.01\n"
    )
    done = finished.snakemake(study="failing")
    assert done.returncode != 0
    manifest = read_json(finished.path / "results" / "studies" / "failing" / "manifest.json")
    runs = [finished.path / "results" / "experiments" / e["id"] for e in manifest["experiments"]]
    facts = {read_json(run / "run.json")["status"]: run for run in runs}
    assert set(facts) == {"complete", "failed"}
    assert "gone.csv" in read_json(facts["failed"] / "run.json")["reason"]
    assert "gone.csv" in (facts["failed"] / "run.log").read_text()
    page = finished.page("failing").read_text(encoding="utf-8")
    assert "gone.csv" in page
    (finished.path / "gone.csv").write_text(
        "prompt_tokens,output_tokens,arrival_s\n20,5,0\n30,6,0.01\n"
    )
    before = facts["complete"].joinpath("run.json").stat().st_mtime_ns
    again = finished.snakemake(study="failing")
    assert again.returncode == 0, again.stdout
    assert facts["complete"].joinpath("run.json").stat().st_mtime_ns == before


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
