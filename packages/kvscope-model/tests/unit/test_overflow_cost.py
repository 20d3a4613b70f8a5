"""Costs of copying, fetching and rebuilding a victim's blocks."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.plan.composition import Composer
from kvscope.plan.models import Model
from kvscope.tables.rebuilds import rebuild_parts
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import PassCost, copies_in, copy_s
from kvscope_model.hardware.overflow_cost import OverflowCost

A100 = data.read("a100-40gb")
COMPOSER = Composer(Path("config"))


def cost_of(model: str, coalesced: bool = False, block_size: int = 16) -> OverflowCost:
    result = Model.model_validate(COMPOSER.compose((("model", model),))["model"])
    passes = PassCost(A100, result)
    return OverflowCost(passes, block_size, result.layers, "pinned", coalesced)


LLAMA_2 = cost_of("yarn-llama-2-7b")
tokens = st.integers(1, 16_000)


@given(tokens)
def test_a_rebuilding_takes_at_least_the_time_of_its_product(n: int):
    model = LLAMA_2.model
    flops = 2.0 * n * 3 * model.hidden_size**2 * model.layers
    assert LLAMA_2.rebuild_s(n) >= flops / A100.gemm_flops_per_s
    weights_bytes = 3 * model.hidden_size**2 * model.layers * 2
    assert LLAMA_2.rebuild_s(n) >= weights_bytes / A100.weight_bytes_per_s


@given(tokens, st.integers(1, 64))
def test_parts_cover_each_block_once_and_in_order(n: int, block_size: int):
    parts = list(rebuild_parts(n, block_size))
    assert [first for first, _ in parts[1:]] == [last for _, last in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, -(-n // block_size))
    assert all(last - first <= max(1, 1024 // block_size) for first, last in parts)


@given(st.integers(64, 1000))
def test_without_grouped_queries_half_the_bytes_are_fetched(blocks: int):
    # Copies of a size: a block's activations lie in one piece, its K and V in one for each layer.
    whole = cost_of("yarn-llama-2-7b", coalesced=True)
    (fetched_s, _), (swapped_s, _) = whole.fetch_s(blocks, 1), whole.swap_s(blocks, 1, "in")
    launches_s = 31 * A100.pinned_copy_s
    assert fetched_s == pytest.approx((swapped_s - launches_s) / 2, rel=0.01)


@pytest.mark.parametrize("model", ["yarn-llama-2-7b", "opt-13b"])
def test_rebuilding_takes_less_than_computing_the_tokens_again(model: str):
    cost = cost_of(model)
    for n in (512, 1024, 2048):
        back_s = cost.fetch_s(-(-n // 16), 1)[0] + cost.rebuild_s(n)
        assert back_s < cost.passes.pass_s([(n, 0)], 0, 0, 0)


def test_activations_of_llama_3_1_take_longer_to_fetch_than_k_and_v():
    cost = cost_of("llama-3.1-8b", coalesced=True)
    assert cost.activation_block_bytes == 2 * cost.block_bytes
    assert cost.fetch_s(256, 1)[0] > cost.swap_s(256, 1, "in")[0]


def test_saved_activations_cross_the_link_once():
    seconds, _ = LLAMA_2.save_s(4096, 1)
    expected = 4096 * 32 * 4096 * 2 / A100.pinned_out_bytes_per_s
    assert seconds == pytest.approx(expected, rel=1e-3)


@given(st.integers(1, 10_000), st.integers(1, 4096), st.sampled_from(["in", "out"]), st.booleans())
def test_the_seconds_of_copies_tell_how_many_there_were(
    copies: int, piece_bytes: int, direction: str, coalesced: bool
):
    cost = cost_of("yarn-llama-2-7b", coalesced)
    moved = copies * piece_bytes
    seconds, _ = cost.copied_s(copies, moved, direction)
    assert cost.copies_in(seconds, moved, direction) == copies


@given(st.integers(1, 1000), st.integers(1, 4096))
def test_so_they_do_where_the_hosts_calls_take_longer(copies: int, piece_bytes: int):
    slow = A100.model_copy(update={"copy_issue_s": 1e-4, "pinned_copy_s": 0.0})
    seconds, _ = copy_s(slow, copies, piece_bytes, "pinned", "out")
    assert copies_in(slow, seconds, copies * piece_bytes, "pinned", "out") == copies
