"""GPU memory that activations need beside the cache."""

import pytest

from kvscope.base.errors import BadInput
from tests.unit.test_plan_gpu import memory, planned


def test_activations_of_a_pass_are_gathered_twice() -> None:
    """A pass of 4096 tokens has 4 layers of 256 numbers of 4 bytes."""
    words = ("model=tiny-llama", "engine.max_model_len=1024", "overflow=activation")
    assert memory(*words).copy_bytes == 2 * 4096 * 4 * 256 * 4


def test_copies_of_adaptive_have_the_contents_of_its_pools() -> None:
    words = ("overflow=adaptive", "overflow.hardware=a100-40gb", "overflow.host_gib=64")
    assert memory("model=tiny-llama", *words).copy_bytes == 2 * 4096 * 4 * 256 * 4
    coalesced = (*words, "overflow.copies=coalesced")
    both = memory("model=tiny-llama", "engine.max_model_len=1024", *coalesced).copy_bytes
    assert both == 1024 * 2048 + 2 * 4096 * 4 * 256 * 4
    # activations larger than K and V are not kept
    assert memory("model=tiny-gqa", *words).copy_bytes == 0


def test_activations_count_too() -> None:
    words = ("model=yarn-llama-2-7b", "device.hardware=rtx-4090")
    passes = "engine.max_num_batched_tokens"
    planned(*words, f"{passes}=12288")
    for more in ((f"{passes}=98304",), (f"{passes}=12288", "overflow=activation")):
        with pytest.raises(BadInput, match="must fit"):
            planned(*words, *more)
