"""The choice of `adaptive`: never an action that its cost model holds for dearer than another."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.actions import ACTIVATION, RECOMPUTE, SWAP
from kvscope.engine.overflow.adaptive import Adaptive
from kvscope.engine.overflow.policy import Victim
from kvscope.errors import BadInput
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand


def experiment(*words: str, device: str = "modeled") -> Experiment:
    given_words = [f"device={device}", "workload=uniform", "overflow=adaptive", *words]
    (planned,) = expand(None, given_words, Path("config")).experiments
    return planned.experiment


def prepared(*words: str) -> Adaptive:
    found = experiment(*words)
    assert isinstance(found.overflow, Adaptive)
    found.overflow.prepare(found)
    return found.overflow


def victim(tokens: int, **more: Any) -> Victim:
    return Victim("1", tokens, 1, tokens, 0, **more)


@pytest.fixture(scope="module", params=["a100-40gb", "h100", "rtx-4090"])
def policy(request) -> Adaptive:
    return prepared(f"device.hardware={request.param}", "model=yarn-llama-2-7b", "cache.gib=6")


@given(tokens=st.integers(1, 16_000), room=st.booleans(), activations=st.booleans())
def test_it_is_the_cheapest_of_those_that_are_possible(policy, tokens, room, activations):
    given_to = victim(tokens, room=room, activations=activations)
    seconds, chosen = policy.seconds(given_to), policy.action(given_to)
    assert list(seconds) == [RECOMPUTE] + [SWAP] * room + [ACTIVATION] * activations
    assert policy.predicted_s(given_to, chosen) == seconds[chosen] == min(seconds.values())


def test_long_contexts_are_rebuilt_where_k_and_v_have_all_heads(policy: Adaptive):
    assert policy.action(victim(8000, room=True, activations=True)) == ACTIVATION


def test_a_victim_of_a_full_pool_is_recomputed(policy: Adaptive):
    assert policy.action(victim(8000)) == RECOMPUTE


def test_a_few_tokens_are_computed_in_a_pass_that_reads_the_weights_anyway():
    """Where requests share passes: copies of whole blocks cost more than a few products."""
    small = victim(2, room=True, activations=True)
    words = ("model=yarn-llama-2-7b", "cache.gib=6", "cache.block_size=64")
    assert prepared(*words, "batching=mixed").action(small) == RECOMPUTE
    assert prepared(*words, "batching=prefill_first").action(small) != RECOMPUTE


def test_the_pools_share_the_memory_for_as_many_blocks_of_either():
    found = experiment("model=yarn-llama-2-7b", "cache.gib=6", "overflow.host_gib=1.5")
    block_bytes = 16 * (512 + 256) * 1024
    assert found.host_blocks == 1.5 * 2**30 // block_bytes
    assert found.overflow.pool_bytes(found) <= 1.5 * 2**30
    assert isinstance(found.overflow, Adaptive)
    found.overflow.prepare(found)
    settings = found.overflow.engine_arguments(7)["kv_transfer_config"]["kv_connector_extra_config"]
    assert (settings["host_blocks"], settings["activation_blocks"]) == (7, 7)


def test_llama_3_1_has_a_pool_of_k_and_v_alone():
    found = experiment("model=llama-3.1-8b", "cache.gib=6", "overflow.host_gib=1")
    assert found.host_blocks == 2**30 // found.block_bytes
    assert isinstance(found.overflow, Adaptive)
    found.overflow.prepare(found)
    settings = found.overflow.engine_arguments(7)["kv_transfer_config"]["kv_connector_extra_config"]
    assert (settings["host_blocks"], settings["activation_blocks"]) == (7, 0)


def test_a_device_without_numbers_needs_the_name_of_hardware():
    with pytest.raises(BadInput, match=r"must be one of a100-40gb, .* with device=cuda"):
        experiment("cache.blocks=64", device="cuda")
    assert experiment("cache.blocks=64", "overflow.hardware=h100", device="cuda").id
    with pytest.raises(BadInput, match=r"overflow.hardware \(h1000\)"):
        experiment("overflow.hardware=h1000", "cache.blocks=64")


def test_the_hardware_of_the_cost_model_is_part_of_the_id():
    ids = {experiment("cache.blocks=64", f"overflow.hardware={h}").id for h in ("h100", "h200")}
    assert len({*ids, experiment("cache.blocks=64").id}) == 3
