"""A real study in packs, through Snakemake and `kvscope submit`, on this machine and on Slurm."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

import kvscope
from fake_pbs.cluster import FakePBS, wait_for
from real_slurm import until
from submitit_packs.overview import overview
from tests.workflow.test_snakemake import LOUD, ROOT, Checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def checkout(tmp_path, require, forked) -> Checkout:
    require("submitit_packs", find_spec("submitit_packs") is not None, "run `make env`")
    checkout = Checkout(tmp_path)
    (tmp_path / "envs").mkdir()
    return checkout


LOCAL = ("--profile", "profiles/local-gpus", "--submitit-gpus-per-node", "1")
SLURM = ("--profile", "profiles/slurm", "--seconds-between-status-checks", "2")
PATIENCE_S = 900.0


@contextmanager
def started(checkout: Checkout, module: str, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """A command of the checkout's that runs; it does no more after the block."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=checkout.path,
        env=checkout.warm,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def snakemake(checkout: Checkout, *words: str) -> tuple[int, str]:
    with started(checkout, "snakemake", *words, "--config", "study=two") as process:
        text, _ = process.communicate()
        return process.returncode, text


@contextmanager
def watched(checkout: Checkout) -> Iterator[Path]:
    """Output of `kvscope status --watch`, from the first submission on."""
    packs = checkout.path / "results" / "packs"
    until("something is submitted", lambda: list(packs.glob("*/job.json")), PATIENCE_S)
    output = checkout.path / "status.txt"
    words = [sys.executable, "-m", "kvscope.cli", "status", "two", "--watch", "0.5"]
    with output.open("w") as file:
        process = subprocess.Popen(words, cwd=checkout.path, env=checkout.warm, stdout=file)
    try:
        yield output
    finally:
        process.kill()
        process.wait()


def test_a_study_in_packs_becomes_a_page(checkout):
    code, text = snakemake(checkout, *LOCAL)
    assert code == 0, text
    checkout.assert_true()
    members = overview(checkout.path / "results" / "packs").members
    assert [m.state for m in members.values()] == ["ok", "ok"]  # a group is one member
    before = checkout.measurements()

    status = checkout.kvscope("status", "two", "--all")
    assert status.returncode == 0, status.stdout
    assert re.search(r"2 ok, \d+\.\d\d node-hours used, \d+% of the slots idle", status.stdout)

    submitted = checkout.kvscope("submit", "study=two", "--cluster", "local")
    assert submitted.returncode == 0, submitted.stdout  # there is nothing left to do
    assert checkout.measurements() == before

    _, text = snakemake(checkout, *LOCAL)
    assert "Nothing to be done" in text, text


@pytest.mark.parametrize(("profile", "batches"), [(LOCAL, 2), (("--cores", "1"), 1)])
def test_modeled_experiments_are_as_many_batches_as_run_at_a_time(checkout, profile, batches):
    words = "overrides=device=modeled engine.max_num_seqs=8 seed=range(0,25)"
    dry = (*profile, "-n", *LOUD, "--config", words)
    with started(checkout, "snakemake", *dry) as process:
        text, _ = process.communicate()
    assert process.returncode == 0, text
    assert re.search(rf"^run_experiments +{batches}$", text, re.MULTILINE), text


@pytest.mark.parametrize("through", ["snakemake", "submit"])
def test_a_study_on_slurm_is_watched_to_its_end(checkout, here, through):
    command = ["kvscope.cli", "submit", "study=two", "--cluster", "slurm"]
    if through == "snakemake":
        command = ["snakemake", *SLURM, "--config", "study=two"]
    with started(checkout, *command) as process, watched(checkout) as seen:
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, text
        until("the end is seen", lambda: "\n2 ok, " in seen.read_text())
    assert "slurm job" in text
    assert here.jobs("pending,running,completing") == {}
    looks = seen.read_text()
    assert re.search(r"running +n\d+ ", looks), looks  # on which node
    assert re.search(r"(\d queued|\d running|\d ok).* node-hours used", looks)
    if through == "submit":
        reported = checkout.kvscope("report", "two")
        assert reported.returncode == 0, reported.stdout
    checkout.assert_true()


@pytest.fixture
def polaris(checkout, tmp_path) -> Iterator[FakePBS]:
    """A PBS with Polaris's queues, whose nodes have what the checkout has in its environment."""
    site = (ROOT / "envs" / "polaris.sh").read_text()
    mine = {k: v for k, v in checkout.warm.items() if k.startswith("KVSCOPE_") or k == "PYTHONPATH"}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in mine.items()]
    (tmp_path / "envs" / "polaris.sh").write_text("".join([site, *lines]))
    with FakePBS(tmp_path / "pbs", nodes=2, mpi=False) as pbs:
        checkout.more = {"PATH": f"{Path(sys.executable).parent}:{pbs.path}"}
        checkout.more |= {"KVSCOPE_ACCOUNT": "physics"}
        yield pbs


@pytest.mark.representative
def test_a_study_on_pbs_by_its_profile(checkout, polaris):
    words = ["--profile", "profiles/polaris", "--seconds-between-status-checks", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words, "--latency-wait", "5", "--config", "study=two"],
        cwd=checkout.path,
        env=checkout.warm,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    checkout.assert_true()
    job = polaris.job("1")
    assert (job["queue"], job["Account_Name"], job["Exit_status"]) == ("debug", "physics", "0")

    submitted = checkout.kvscope("submit", "study=two", "seed=7", *words[:2])
    assert submitted.returncode == 0, submitted.stdout
    assert "pbs job 2, 2 members on 1 nodes x 4 slots" in submitted.stdout
    wait_for(lambda: polaris.processes() == 0)


def test_a_configuration_packed_and_alone(checkout):
    """Two slots: those that share the node have each other as a neighbour, the others none."""
    site = checkout.path / "two-slots.yaml"
    queue = "{name: local, nodes: [1, 1], max_jobs: 1}"
    site.write_text(f"name: two\nscheduler: local\ngpus_per_node: 2\nqueues: [{queue}]\n")
    words = ("study=two", "exclusive=false,true", "--cluster", "local", "--site", str(site))
    submitted = checkout.kvscope("submit", *words)
    assert submitted.returncode == 0, submitted.stdout
    neighbours: dict[bool, list[int]] = {True: [], False: []}
    for run in (checkout.path / "results" / "experiments").iterdir():
        placement = kvscope.load(run).facts["placement"]
        neighbours[placement["exclusive"]].append(len(placement["neighbours"]))
    assert neighbours == {True: [0, 0], False: [1, 1]}
    name = re.search(r"next: kvscope report (\S+)", submitted.stdout)
    assert name
    reported = checkout.kvscope("report", name[1])
    assert reported.returncode == 0, reported.stdout
    page = checkout.page(name[1]).read_text(encoding="utf-8")
    assert "beside 1 other" in page
    assert ", alone" in page


def test_a_dry_run_prints_every_script_and_the_node_hours(checkout):
    checkout.more = {"KVSCOPE_ACCOUNT": "physics"}
    words = ("--profile", "profiles/polaris", "--dry-run")
    done = checkout.kvscope("submit", "study=two", *words)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("#!/bin/bash") == 1
    for line in ("#PBS -A physics", "#PBS -q debug", "#PBS -l filesystems=home:eagle"):
        assert line in done.stdout
    assert "#PBS -l select=1:system=polaris" in done.stdout
    assert "source envs/polaris.sh" in done.stdout
    assert re.search(r"# 1 jobs, 2 experiments, at most \d\.\d\d node-hours", done.stdout)
    assert not (checkout.path / "results" / "packs").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cluster", "pbs"), "polaris needs an account: --account PROJECT"),
        ((), "where to? --cluster pbs, slurm or local, or --profile profiles/polaris"),
        (
            ("--profile", "profiles/polaris"),
            "the account is $KVSCOPE_ACCOUNT: set this variable to your project",
        ),
        (("--profile", "profiles/mars"), "profiles/mars/config.yaml is no profile: "),
        (
            ("--cluster", "pbs", "--account", "a", "--queue", "quick", "--dry-run"),
            "queue is 'quick', and polaris has debug, debug-scaling, prod, preemptable, capacity,",
        ),
        (
            ("--cluster", "local", "--site", "polaris"),
            "--site polaris is one of pbs, and --cluster",
        ),
        (
            (
                "--cluster",
                "pbs",
                "--account",
                "a",
                "--queue",
                "prod",
                "--max-nodes",
                "4",
                "--dry-run",
            ),
            "no queue allows that with 4 nodes at most: prod (10 to 496 nodes, 03:00:00)",
        ),
    ],
)
def test_impossible_input_is_one_sentence(checkout, words, sentence):
    done = checkout.kvscope("submit", "study=two", *words)
    assert done.returncode == 2, done.stdout
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout
