"""The offload engine as a device: which settings a policy takes, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import BadInput
from kvscope.offload.device import OffloadDevice
from kvscope.offload.policies import POLICIES
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[2] / "config"
BASE = ("model=tiny-opt", "device=offload", "engine.attention=torch")


def planned(*overrides: str) -> Experiment:
    return expand(None, [*BASE, "cache.blocks=64", *overrides], CONFIG).experiments[0].experiment


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_an_option_of_the_device(policy):
    device = planned(f"device.policy={policy}").device
    assert isinstance(device, OffloadDevice)
    made = device.offload_policy(2**30)
    assert made.name == policy
    assert made.host_gib == 1


def test_keys_of_the_device_are_those_of_its_policy():
    overrides = ("device.share=0.3", "device.buffers=3", "device.weights=resident")
    device = planned(*overrides).device
    assert isinstance(device, OffloadDevice)
    made: Any = device.offload_policy(2**30)
    assert (made.share, made.schedule.buffers, made.streamed) == (0.3, 3, False)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["device.policy=both"], r"device.policy \(both\) must be one of gpu_kv, .*hybrid"),
        (["device.policy=kv_only", "device.share=0.5"], "device.share must be null with .*kv_only"),
        (["device.policy=token", "device.buffers=1"], "device.buffers must be null with .*token"),
        (["device.share=1.5"], "device.share"),
        (["engine.attention=vllm"], r"engine.attention \(vllm\) must be torch on device offload"),
        (["device=offload_cuda", "device.link_gb_per_s=1"], "link_gb_per_s"),
    ],
)
def test_what_cannot_work_is_refused_in_words(overrides, sentence):
    keys = {word.partition("=")[0]: word for word in (*BASE, "cache.blocks=64", *overrides)}
    with pytest.raises(BadInput, match=sentence):
        expand(None, [*keys.values()], CONFIG)


def test_a_gpu_is_reserved_for_the_gpu_alone():
    on_gpu = expand(
        None, ["model=tiny-opt", "device=offload_cuda", "engine.attention=torch"], CONFIG
    )
    assert on_gpu.experiments[0].experiment.device.gpus == 1
    assert planned().device.gpus == 0


def test_a_setting_of_the_policy_makes_another_experiment():
    ids = {planned(*words).id for words in ([], ["device.share=0.5"], ["device.buffers=1"])}
    assert len(ids) == 3


@pytest.mark.parametrize("study", ["hybrid-cpu", "hybrid-cuda"])
def test_the_studies_can_be_planned(study):
    found = expand(study, [], CONFIG)
    policies = {e.experiment.device.model_dump()["policy"] for e in found.experiments}
    assert {"kv_only", "act_only", "hybrid"} <= policies
