"""The choice of `adaptive`: never an action that its cost model holds for dearer than another."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.plan.actions import RECOMPUTE, SWAP
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope_offload.overflow.adaptive import Adaptive
from kvscope_offload.overflow.saving import ACTIVATION
from kvscope_offload.overflow.victims import Foreseen, Growth, Outlook


def experiment(*words: str, device: str = "modeled") -> Experiment:
    given_words = [f"device={device}", "workload=uniform", "overflow=adaptive", *words]
    (planned,) = expand(None, given_words, Path("config")).experiments
    return planned.experiment


def prepared(*words: str) -> Adaptive:
    result = experiment(*words)
    assert isinstance(result.overflow, Adaptive)
    result.overflow.prepare(result)
    return result.overflow


def victim(tokens: int, **more: Any) -> Foreseen:
    return Foreseen("1", tokens, 1, tokens, 0, **more)


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
    """Requests share passes: copies of whole blocks cost more than a few products."""
    small = victim(2, room=True, activations=True)
    words = ("model=yarn-llama-2-7b", "cache.gib=6", "cache.block_size=64")
    assert prepared(*words, "batching=mixed").action(small) == RECOMPUTE
    assert prepared(*words, "batching=prefill_first").action(small) != RECOMPUTE


def outlook(prompt: int, most: int, *lost: int, room: bool = True) -> Outlook:
    """Outlook of a request that is preempted with these tokens, with or without room for
    activations."""
    victims = (victim(tokens, beside=3, room=True, activations=room) for tokens in lost)
    return Outlook(Growth(prompt, most), tuple(victims))


MHA = ("model=yarn-llama-2-7b", "cache.gib=6", "batching=prefill_first")


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_tokens_that_are_never_lost_or_have_no_room_are_not_saved(memory: str):
    policy = prepared(*MHA, f"overflow.host_memory={memory}")
    assert not policy.saves(outlook(2000, 2200))
    assert policy.saves(outlook(2000, 2200, 2100, 2150, 2190))
    assert not policy.saves(outlook(2000, 2200, 2100, 2150, 2190, room=False))


def test_the_host_waits_for_pageable_memory_so_it_takes_more_preemptions_to_repay():
    pinned, pageable = (prepared(*MHA, f"overflow.host_memory={m}") for m in ("pinned", "pageable"))
    once, often = outlook(100, 4000, 1000), outlook(100, 4000, *range(1000, 4000, 200))
    assert (pinned.saves(once), pinned.saves(often)) == (True, True)
    assert (pageable.saves(once), pageable.saves(often)) == (False, True)


@given(st.integers(2, 4000), st.integers(0, 30))
def test_a_prompt_in_chunks_is_dearer_the_fewer_run_beside_it(tokens: int, beside: int):
    policy = prepared("model=yarn-llama-2-7b", "cache.gib=6", "batching=chunked")
    fewer, more = (
        policy.seconds(victim(tokens, beside=n))[RECOMPUTE] for n in (beside, beside + 1)
    )
    assert fewer > more if tokens >= 256 else fewer == more


def test_requests_that_are_computed_together_share_their_pass():
    """Apart, each would read all weights; so as many as share it make swapping less worthwhile."""
    policy = prepared(*MHA)
    alone, shared = (policy.seconds(victim(50, together=n))[RECOMPUTE] for n in (1, 8))
    assert shared < alone / 2
    chunked = prepared("model=yarn-llama-2-7b", "cache.gib=6", "batching=chunked")
    one, many = (chunked.seconds(victim(50, together=n)) for n in (1, 8))
    assert one == many


def pools(*words: str) -> tuple[int, int, int]:
    """Blocks of the plan, and of K and V and of activations when the engine gets seven."""
    result = experiment(*words)
    assert isinstance(result.overflow, Adaptive)
    result.overflow.prepare(result)
    settings = result.overflow.engine_arguments(7)["kv_transfer_config"][
        "kv_connector_extra_config"
    ]
    return result.host_blocks, settings["host_blocks"], settings["activation_blocks"]


def test_memory_for_the_cache_in_both_ways_is_shared_for_as_many_blocks_of_either():
    words = ("model=yarn-llama-2-7b", "cache.blocks=100")
    both = 16 * (512 + 256) * 1024  # bytes of a block
    assert pools(*words, f"overflow.host_gib={100 * both / 2**30}") == (100, 7, 7)
    assert pools(*words, "overflow.host_gib=null", "overflow.host_blocks=9") == (9, 7, 7)


def test_scarce_memory_is_for_what_is_cheaper():
    words = ("model=yarn-llama-2-7b", "cache.gib=6", "overflow.host_gib=1.5")
    blocks = 1.5 * 2**30 // (16 * 256 * 1024)
    assert pools(*words) == (blocks, 0, 7)
    slow = "device.constants={gemm_flops_per_s: 1.0e+12}"  # to rebuild
    assert pools(*words, slow) == (blocks // 2, 7, 0)
    saving = "device.constants={pageable_copy_s: 1.0e-3}"  # of every token, of few runs of blocks
    pageable = ("overflow.host_memory=pageable", "overflow.copies=coalesced")
    assert pools(*words, saving, *pageable) == (blocks // 2, 7, 0)


def test_scarce_memory_is_for_what_holds_a_request_if_the_cheaper_pool_does_not():
    """On a CPU K and V are cheaper to swap, but activations take half the memory."""
    words = ("device.hardware=cpu", "model=tiny-llama", "batching=prefill_first")
    shape = ("cache.block_size=4", "cache.blocks=975", "engine.max_model_len=2294")
    block_gib = 4 * 8 * 1024 / 2**30  # 4 layers, K and V of 256 elements of 4 bytes
    half = 2294 // 2 // 4  # blocks of half the longest request
    room = f"overflow.host_gib={1.2 * half * block_gib:.6f}"
    scarce = f"overflow.host_gib={0.4 * half * block_gib:.6f}"
    assert pools(*words, *shape, room)[1:] == (7, 0)
    assert pools(*words, *shape, scarce)[1:] == (0, 7)


def test_llama_3_1_has_a_pool_of_k_and_v_alone():
    words = ("model=llama-3.1-8b", "cache.gib=6", "overflow.host_gib=1")
    assert pools(*words) == (2**30 // (16 * 128 * 1024), 7, 0)


def test_a_device_without_numbers_needs_the_name_of_hardware():
    with pytest.raises(BadInput, match=r"must be one of a100-40gb, .* with device=cuda"):
        experiment("cache.blocks=64", device="cuda")
    assert experiment("cache.blocks=64", "overflow.hardware=h100", device="cuda").id
    with pytest.raises(BadInput, match=r"overflow.hardware \(h1000\)"):
        experiment("overflow.hardware=h1000", "cache.blocks=64")


def test_the_hardware_of_the_cost_model_is_part_of_the_id():
    ids = {experiment("cache.blocks=64", f"overflow.hardware={h}").id for h in ("h100", "h200")}
    assert len({*ids, experiment("cache.blocks=64").id}) == 3


def test_repeated_recomputations_cost_their_sum(policy: Adaptive):
    """The prediction stays that of one preemption."""
    once, often = (victim(4000, beside=1, room=True, again=n) for n in (0, 1000))
    assert policy.action(often) == SWAP
    assert policy.predicted_s(often, RECOMPUTE) == policy.predicted_s(once, RECOMPUTE)
    assert policy.expected_s(once) == policy.seconds(once)
