"""The device `modeled` in the plan: the defaults that it sets, and the contents of its id."""

import json
from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan.grid import expand
from kvscope.plan.resources import resources

CONFIG = Path(__file__).parents[4] / "config"
SMALL = ("engine.max_num_seqs=8",)


def planned(*words: str):
    (one,) = expand(None, ["device=modeled", *SMALL, *words], CONFIG).experiments
    return one.experiment


def test_it_has_the_settings_of_the_paper():
    result = planned("overflow=swap")
    assert result.cache.admission == "vllm-0.4.2"
    assert (result.cache.watermark, result.cache.block_size) == (0.01, 16)
    assert result.cache.pieces(result.model.layers) == 2 * result.model.layers
    assert result.engine.max_num_batched_tokens == result.engine.max_model_len
    assert result.overflow.host_gib == 64


@pytest.mark.parametrize(
    ("word", "value"),
    [("cache.admission=vllm", "vllm"), ("cache.admission=vllm-0.4.2", "vllm-0.4.2")],
)
def test_its_settings_are_replaced_by_the_command_line(word: str, value: str):
    assert planned(word).cache.admission == value


def test_a_host_pool_is_set_only_for_a_policy_that_has_one():
    assert not hasattr(planned("overflow=recompute").overflow, "host_gib")


def test_other_devices_keep_their_defaults():
    (one,) = expand(None, [], CONFIG).experiments
    assert (one.experiment.cache.admission, one.experiment.cache.block_size) == ("vllm", 32)


def test_hardware_and_constants_are_in_the_id():
    ids = {
        planned().id,
        planned("device.hardware=h100").id,
        planned("device.constants={gemm_flops_per_s: 1.0e14}").id,
        planned("device.kernels=vllm").id,
    }
    assert len(ids) == 4
    assert "hardware_sha256" in json.loads(planned().canonical_json)["device"]


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("device.hardware=a100", "must be one of a100-40gb"),
        ("device.constants={speed: 1.0}", "device.constants"),
        ("device.constants={gemm_flops_per_s: -1.0}", "greater than 0"),
        ("device.constants={link_bytes_per_s: 1.0e9}", "no time follows from it"),
        ("cache.blocks=100000000", "must fit into"),
        ("model=tiny-window", "device.kernels .* must be vllm"),
    ],
)
def test_experiments_that_cannot_be_modeled_are_refused(word: str, complaint: str):
    with pytest.raises(BadInput, match=complaint):
        planned(word)


def test_nothing_is_allocated():
    needs = resources(planned("model=opt-13b", "overflow=swap", "cache.blocks=820"))
    assert needs["memory_mib"] < 8192
    assert needs["batch"] == 1


def test_settings_of_a_device_must_be_keys(tmp_path: Path):
    option = tmp_path / "device" / "mine.yaml"
    option.parent.mkdir()
    option.write_text("name: modeled\nsets:\n  cache.blokcs: 3\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"cache\.blokcs .*sets.* is not a key"):
        expand(None, ["device=mine"], tmp_path)
