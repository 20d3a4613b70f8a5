"""An unrelated workflow through the real Snakemake, submitit and Parsl, on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from submitit_packs.overview import overview

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SNAKEFILE = """
rule all:
    localrule: True
    input: expand("out/{i}", i=range(6))

rule one:
    output: "out/{i}"
    resources: gpu=1, runtime=3, expected_s=5
    shell:
        "echo $CUDA_VISIBLE_DEVICES >> began.{wildcards.i}; sleep {config[nap]}; "
        "test {wildcards.i} != 4; hostname > {output}"
"""
WORDS = [
    *("--executor", "submitit", "--jobs", "10", "--keep-going", "--rerun-incomplete", "--nolock"),
    *("--submitit-gpus-per-node", "2", "--seconds-between-status-checks", "1"),
    *("--latency-wait", "5"),
]
PATIENCE_S = 600


class Toy:
    """A workflow's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "Snakefile").write_text(SNAKEFILE)
        self.packs = path / ".snakemake" / "submitit"

    def start(self, *words: str, nap: float = 1.0) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *WORDS, *words, "--config", f"nap={nap}"],
            cwd=self.path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def call(self, *words: str, nap: float = 1.0) -> tuple[int, str]:
        process = self.start(*words, nap=nap)
        text, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, text

    def until_running(self) -> None:
        limit = time.monotonic() + PATIENCE_S
        while not any(m.state == "running" for m in overview(self.packs).members.values()):
            assert time.monotonic() < limit
            time.sleep(0.2)

    def began(self) -> dict[str, int]:
        return {p.suffix[1:]: len(p.read_text().split()) for p in self.path.glob("began.*")}

    def processes(self) -> list[psutil.Process]:
        return [
            p
            for p in psutil.process_iter(["cmdline"])
            if str(self.path) in " ".join(p.info["cmdline"] or ())
        ]


@pytest.fixture
def toy(tmp_path):
    toy = Toy(tmp_path)
    yield toy
    for process in toy.processes():
        process.kill()


def test_a_killed_controller_finds_the_running_packs(toy):
    first = toy.start(nap=3)
    toy.until_running()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    code, text = toy.call(nap=3)
    assert code == 1, text
    assert "Re-attached to packs" in text
    assert "failed: exit code 1 (on " in text  # the job 4, with its own reason
    assert toy.began() == {str(i): 1 for i in range(6)}, text  # none was submitted twice
    assert sorted(p.name for p in (toy.path / "out").iterdir()) == list("01235")
    slots = overview(toy.packs)
    assert {m.gpu for m in slots.members.values()} == {"0", "1"}
    assert slots.idle_share is not None
    assert 0 <= slots.idle_share < 1
    code, text = toy.call(nap=3)  # what failed, and nothing else, runs again
    assert toy.began() == {str(i): 2 if i == 4 else 1 for i in range(6)}, text
    assert "missing provenance" not in text
    assert toy.processes() == []


def test_a_workflow_on_slurm(toy, here):
    code, text = toy.call("--submitit-site", "slurm", "--submitit-queues", "long")
    assert code == 1, text
    assert "slurm job" in text
    assert re.search(r"failed: exit code 1 \(on n\d+ GPU \d", text), text
    assert sorted(p.name for p in (toy.path / "out").iterdir()) == list("01235")
    assert {m.gpu for m in overview(toy.packs).members.values()} == {"0", "1"}
    assert toy.began() == {str(i): 1 for i in range(6)}
    assert here.jobs("pending,running,completing") == {}
    assert "Traceback" not in text


def test_ctrl_c_cancels(toy):
    process = toy.start(nap=60)
    toy.until_running()
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0, text
    limit = time.monotonic() + PATIENCE_S
    while toy.processes() and time.monotonic() < limit:
        time.sleep(0.5)
    assert toy.processes() == []
    states = [json.loads(p.read_text())["state"] for p in toy.packs.glob("pack-*/*.rc")]
    assert set(states) == {"killed"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--submitit-site", "nowhere"), "site is 'nowhere', which is no file; there are local, "),
        (("--submitit-queues", "quick"), "queue is 'quick', and local has local"),
        (("--submitit-launcher", "ssh"), "launcher is 'ssh' but must be one of mpiexec, srun,"),
        (("--submitit-site", "polaris"), "polaris needs an account: set submitit-account"),
        (("--submitit-options", "high"), "option 'high' is not CLUSTER_PARAMETER=VALUE"),
    ],
)
def test_a_wrong_setting_is_one_sentence(toy, words, sentence):
    code, text = toy.call(*words)
    assert code != 0
    assert sentence in text
    assert "Traceback" not in text
