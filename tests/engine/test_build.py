"""vLLM gets the settings of the experiment, and the weights are those of its seed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from kvscope.engine.devices.platform import platform_of
from kvscope.engine.vllm.build import engine_arguments
from kvscope.engine.vllm.connectors import copies
from kvscope.engine.vllm.connectors.swap import SwapConnector
from kvscope.engine.vllm.weights import SeededLoader
from kvscope.plan.grid import expand

from .conftest import ROOT

pytestmark = pytest.mark.engine


def arguments(*words: str) -> dict[str, Any]:
    """Arguments of vLLM for an experiment with these settings."""
    made: Any = expand(None, [*words], ROOT / "config").experiments[0].experiment
    return engine_arguments(platform_of(made), made.batching, made.overflow, Path("model"))


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("seed=41", "seed", 41),
        ("seed=41", "model_loader_extra_config", {"seed": 41}),
        ("model.dtype=bfloat16", "dtype", "bfloat16"),
        ("engine.max_num_seqs=3", "max_num_seqs", 3),
        ("engine.max_num_batched_tokens=777", "max_num_batched_tokens", 777),
        ("engine.max_model_len=300", "max_model_len", 300),
        ("cache.block_size=64", "block_size", 64),
        ("cache.blocks=90", "num_gpu_blocks_override", 91),  # one is vLLM's own
        ("cache.watermark=0.3", "watermark", 0.3),
    ],
)
def test_an_experiment_s_setting_reaches_vllm(word: str, key: str, value: Any):
    asked = ["engine.max_model_len=300"] if "max_model_len" not in word else []
    assert arguments(word, *asked)[key] == value


def test_nothing_is_cached_that_no_request_computed():
    made = arguments()
    assert made["enable_prefix_caching"] is False
    assert made["async_scheduling"] is False


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["batching=mixed"], {"enable_chunked_prefill": False}),
        (
            ["batching=chunked", "batching.chunk_tokens=48"],
            {"enable_chunked_prefill": True, "max_num_scheduled_tokens": 48},
        ),
    ],
)
def test_a_batching_policy_cuts_prompts_to_its_budget_or_not_at_all(words: Any, expected: Any):
    assert arguments(*words).items() >= expected.items()


def test_a_host_pool_is_as_it_was_asked_for():
    words = ("overflow.host_memory=pageable", "overflow.copies=coalesced")
    made = arguments("overflow=swap", "overflow.host_blocks=7", *words)
    given = made["kv_transfer_config"]["kv_connector_extra_config"]
    assert given == {"policy": "swap", "host_blocks": 7, "pinned": False, "coalesced": True}


@pytest.mark.parametrize(("coalesced", "way"), [(True, copies.Coalesced), (False, copies.PerBlock)])
@pytest.mark.parametrize("pinned", [True, False])
def test_blocks_are_copied_in_the_way_that_was_asked_for(coalesced: bool, way: Any, pinned: bool):
    given = {"policy": "swap", "host_blocks": 7, "pinned": pinned, "coalesced": coalesced}
    vllm = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=given))
    spec = FullAttentionSpec(16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    tensor = SimpleNamespace(size=100 * spec.page_size_bytes)
    group = KVCacheGroupSpec(["attention"], spec)
    cache = KVCacheConfig(num_blocks=100, kv_cache_tensors=[tensor], kv_cache_groups=[group])  # type: ignore[list-item]
    made = SwapConnector(vllm, KVConnectorRole.WORKER, cache)
    assert isinstance(made.copies, way)
    assert (made.pinned, made.pool.size, made.block_size) == (pinned, 7, 16)


def weights(seed: int, *names: str) -> dict[str, torch.Tensor]:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(6, 6, bias=False) for name in names})
    loader = SeededLoader(SimpleNamespace(model_loader_extra_config={"seed": seed}))  # type: ignore[arg-type]
    loader.load_weights(model, None)  # type: ignore[arg-type]
    return {name: model[name].weight.detach() for name in names}


def test_weights_are_those_of_a_seed_and_a_name():
    ones, same, others = weights(3, "a", "b"), weights(3, "b", "a"), weights(4, "a", "b")
    assert all(torch.equal(ones[name], same[name]) for name in ones)
    assert not any(torch.equal(ones[name], others[name]) for name in ones)
    assert not torch.equal(ones["a"], ones["b"])
