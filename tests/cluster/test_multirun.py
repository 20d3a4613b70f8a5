"""`kvscope run --multirun` with launchers of Hydra's: submitit on this machine, and on PBS."""

import json
import os
import sys
from importlib.util import find_spec

import pytest

from fake_pbs.cluster import FakePBS, wait_for
from tests.workflow.test_snakemake import Checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


@pytest.fixture
def checkout(tmp_path, require, forked) -> Checkout:
    require("hydra-submitit-launcher", find_spec("submitit") is not None, "run `make env`")
    return Checkout(tmp_path / "checkout")


def multirun(checkout: Checkout, *words: str) -> tuple[int, str]:
    command = ("run", "--multirun", "study=two", "repeats=1", "warmup=0")
    done = checkout.kvscope(*command, *words)
    return done.returncode, done.stdout


def test_every_experiment_of_a_study_is_a_job_of_submitits_local(checkout):
    code, text = multirun(checkout, "hydra/launcher=submitit_local")
    assert code == 0, text
    assert len(checkout.measurements()) == 2
    jobs = (checkout.path / "results" / "multirun").glob("*/.submitit/*/*_result.pkl")
    assert len(list(jobs)) == 2


def test_every_experiment_of_a_study_is_a_job_of_pbs(checkout, tmp_path):
    with FakePBS(tmp_path / "pbs", nodes=2) as pbs:
        checkout.more = {"PATH": f"{pbs.path}:{os.path.dirname(sys.executable)}"}
        words = ["queue=demand", "account=physics", "filesystems=home", "chunk='system=polaris'"]
        words += [f"setup=['export PYTHONPATH={os.environ['PYTHONPATH']}']"]
        options = [f"hydra.launcher.{word}" for word in words]
        code, text = multirun(checkout, "hydra/launcher=submitit_pbs", *options)
        assert code == 0, text
        assert len(checkout.measurements()) == 2
        assert pbs.calls("qsub") == 1
        wait_for(lambda: pbs.job("1[]")["job_state"] == "F")
        assert {pbs.job(f"1[{i}]")["Exit_status"] for i in (0, 1)} == {"0"}

        code, text = multirun(checkout, "hydra/launcher=submitit_pbs", "hydra.launcher.queue=prod")
        assert code == 1
        assert "submitit_pbs" in text
        assert "failed: qsub: Account_Name is required to be set." in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("hydra/launcher=nosuch",), 2, "Could not find 'hydra/launcher/nosuch'"),
        (("hydra/launcher=submitit_pbs", "hydra.launcher.qeue=a"), 2, "hydra.launcher.qeue"),
        (("hydra/launcher=submitit_pbs",), 1, "There is no qsub in PATH"),
        (("hydra/launcher=submitit_local", "--tables"), 2, "run --tables: not with a launcher"),
    ],
)
def test_impossible_input_is_one_sentence(checkout, words, code, sentence):
    result, text = multirun(checkout, *words)
    assert result == code, text
    assert sentence in text
    assert "Traceback" not in text


def test_a_failing_experiment_costs_no_other(checkout):
    planned = checkout.kvscope("plan", "study=two", "repeats=1", "warmup=0", "--json")
    first, second = (entry["id"] for entry in json.loads(planned.stdout))
    experiments = checkout.path / "results" / "experiments"
    experiments.mkdir(parents=True)
    (experiments / first).write_text("a file, where a directory shall be")
    code, text = multirun(checkout, "hydra/launcher=submitit_local")
    assert code == 1, text
    assert f"1 of 2 failed: {first}" in text
    assert "Traceback" not in text
    assert checkout.measurements().keys() == {second}
