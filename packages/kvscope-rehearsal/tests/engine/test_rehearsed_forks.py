"""Nothing calls CUDA before engines are forked, and no CPU's worker is imported for a GPU's."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvscope.base.layout import experiment_directory
from kvscope.engine.devices.cpu import CpuPlatform
from kvscope.engine.devices.cuda import CudaPlatform
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run import campaign
from kvscope.run.campaign import Wanted
from kvscope_rehearsal.command import vllm_version
from kvscope_rehearsal.node import Gpus, environment_of, make_node
from rehearsals import SMALL
from tests.workflow.test_snakemake import ROOT

pytestmark = pytest.mark.engine

# Work of a module that may not be imported before a fork.
CALLS_CUDA = """
import torch
import vllm.platforms

assert vllm.platforms.current_platform.is_cuda()
torch.cuda.current_device()
"""


@pytest.fixture
def node(tmp_path: Path, require, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node that this process is on, with a module that calls CUDA."""
    for name in ("vllm", "triton"):
        require(name, find_spec(name) is not None, "run `make env-dev`")
    make_node(tmp_path / "node", Gpus(), vllm_version())
    (tmp_path / "node" / "calls_cuda.py").write_text(CALLS_CUDA, encoding="utf-8")
    for key, value in environment_of(tmp_path / "node", os.environ).items():
        monkeypatch.setenv(key, value)
    return tmp_path


def experiment() -> Experiment:
    words = [f"{key}={value}" for key, value in SMALL.items()]
    (planned,) = expand(None, [*words, "repeats=1"], ROOT / "config").experiments
    return planned.experiment


def reason(place: Path) -> str | None:
    """Why a campaign of one experiment has no run; None if it has."""
    one = experiment()
    wanted = Wanted(one, experiment_directory(place / "results", one.id))
    error = campaign.measure([wanted], lambda words: None)[one.id]
    return None if error is None else str(error)


def test_a_fork_uses_the_gpu_that_the_zygote_has_not_touched(node):
    assert reason(node) is None


def test_a_call_of_cuda_before_the_fork_is_noticed(node, monkeypatch):
    modules = (*CudaPlatform.worker_modules, "calls_cuda")
    monkeypatch.setattr(CudaPlatform, "worker_modules", modules)
    assert "Cannot re-initialize CUDA in forked subprocess" in str(reason(node))


def test_the_worker_of_cpus_in_a_gpus_zygote_is_noticed(node, monkeypatch):
    modules = (*CudaPlatform.worker_modules, *CpuPlatform.worker_modules)
    monkeypatch.setattr(CudaPlatform, "worker_modules", modules)
    assert "vllm.v1.worker.cpu.shm has put another in its place" in str(reason(node))
