"""The cost of models of other families: what must hold whatever the hardware's numbers are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_modeled_cost import model_of

from kvscope.plan.models import KvLayers, Model
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import Loads, PassCost
from kvscope_model.hardware.family_cost import FamilyCost, attended

H100 = data.read("h100")
FAMILIES = ("gemma-3-27b", "deepseek-v2-lite", "jamba-v0.1", "tiny-window", "tiny-shared")
lengths = st.integers(1, 50_000)


def cost(model: Model, kv_width: int | None = None) -> FamilyCost:
    return FamilyCost(H100, model, split_decode=True, kv_width=kv_width)


def decode_s(model: Model, context: int, kv_width: int | None = None) -> float:
    """Attention of one request, of a mean layer."""
    return cost(model, kv_width).decode_attention_s(context, context, 1, max)


def windows(tokens: int) -> KvLayers:
    return KvLayers(kind="sliding_window", layers=4, token_elements=128, window_tokens=tokens)


FULL = KvLayers(kind="full", layers=4, token_elements=128)


@given(lengths, st.integers(1, 2000))
def test_pairs_are_those_that_can_be_counted(tokens: int, size: int) -> None:
    tokens %= 3000
    ends = np.arange(1, tokens + 1)
    chunks = windows(size).model_copy(update={"kind": "chunked_local"})
    assert attended(tokens, FULL) == ends.sum()
    assert attended(tokens, windows(size)) == np.minimum(ends, size).sum()
    assert attended(tokens, chunks) == ((ends - 1) % size + 1).sum()


@given(lengths, st.integers(0, 50_000))
def test_a_window_as_long_as_the_context_is_full_attention(tokens: int, before: int) -> None:
    whole = model_of("tiny-window").model_copy(update={"kv_layers": [FULL]})
    wide = whole.model_copy(update={"kv_layers": [windows(tokens + before + 1)]})
    for chunks, context in (([(tokens, before)], 0), ([], before + 1)):
        load = (chunks, bool(context), context, context)
        assert cost(wide).pass_s(*load) == cost(whole).pass_s(*load)


@given(lengths)
def test_a_window_bounds_the_tokens_that_decode_reads(context: int) -> None:
    model = model_of("tiny-window")
    window = model.kept[0].window_tokens
    assert window
    assert decode_s(model, context) == decode_s(model, min(context, window))


@given(lengths)
def test_decode_of_latents_reads_them_or_computes_with_them(context: int) -> None:
    model = model_of("deepseek-v2-lite")
    read_s = context * (512 + 64) * 2 / (H100.memory_bytes_per_s * H100.read_share)
    flops = 2 * 16 * (2 * 512 + 64) * context
    expected = max(read_s, flops / H100.attention_flops_per_s)
    assert decode_s(model, context) == pytest.approx(expected)


@given(lengths)
def test_fp8_halves_the_bytes_that_decode_reads(context: int) -> None:
    model = model_of("gemma-3-27b")
    assert decode_s(model, context, 2) == pytest.approx(2 * decode_s(model, context, 1))
    llama = model_of("llama-3.1-8b")
    one, two = (PassCost(H100, llama, split_decode=True, kv_width=width) for width in (1, 2))
    assert two.decode_attention_s(context, context, 1, max) == pytest.approx(
        2 * one.decode_attention_s(context, context, 1, max)
    )


@given(st.integers(1, 64))
def test_a_state_costs_each_request_the_same_at_any_length(requests: int) -> None:
    model = model_of("jamba-v0.1")
    states = model.model_copy(update={"kv_layers": [k for k in model.kept if k.state_bytes]})
    short, long = (cost(states).pass_s([], requests, n * requests, n) for n in (10, 10_000))
    assert short == long
    state_s = 2 * 28 * 573_440 * requests / (H100.memory_bytes_per_s * H100.read_share)
    bare = cost(states)
    assert model.layers * bare.decode_attention_s(10.0, 10.0, requests, max) == pytest.approx(
        state_s
    )


def test_layers_that_share_k_and_v_attend_like_their_owners() -> None:
    shared = model_of("tiny-shared")
    alone = [
        one.model_copy(update={"layers": one.attending_layers, "shared_layers": 0})
        for one in shared.kept
    ]
    keeping = shared.model_copy(update={"kv_layers": alone})
    assert decode_s(shared, 500) == decode_s(keeping, 500)
    assert keeping.token_elements == 2 * shared.token_elements


@pytest.mark.parametrize("name", FAMILIES)
@given(st.integers(2, 64), lengths)
def test_a_longer_context_never_takes_less(name: str, requests: int, context: int) -> None:
    result = cost(model_of(name))
    shorter = result.pass_s([], requests, requests * context, context)
    assert result.pass_s([], requests, requests * (context + 16), context + 16) >= shorter


@pytest.mark.parametrize("name", FAMILIES)
def test_many_passes_cost_the_sum_of_each(name: str) -> None:
    result = cost(model_of(name))
    chunks = [[(300, 0), (20, 4000)], [], [(7, 90)]]
    decodes, context = np.array([0, 3, 2]), np.array([0.0, 5000.0, 100.0])
    together = result.passes_s(Loads(chunks, decodes, context, context))
    each = zip(chunks, decodes.tolist(), context.tolist(), strict=True)
    assert together.tolist() == [result.pass_s(rows, n, held, held) for rows, n, held in each]
