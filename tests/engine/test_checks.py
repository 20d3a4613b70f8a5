"""Warm-up compares attention's outputs and copied contents with plain recomputations."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.engine.attention.batch import batch_rows
from kvscope.engine.attention.reference import ReferenceChecks
from kvscope.engine.checks import PassSelection
from kvscope.engine.overflow.contents import SwapChecks
from kvscope.engine.vllm.attention.paged import PagedAttention, PagedMetadata
from kvscope.engine.vllm.connectors import copies

from .attention_batches import Case, Shape
from .test_copies import BLOCKS, cache

pytestmark = pytest.mark.engine

# A chunk in the middle of a prompt, two decodes, a prompt from its start.
ROWS = [(9, 6), (27, 1), (14, 1), (0, 13)]
SMALL = Shape(ROWS, block_size=4, kv_heads=2, group=2, head_size=8, tile=4)
LAYER = SimpleNamespace(layer_name="model.layers.0.attn")
PASSES = 4  # of which the first, the second and the fourth are looked at


def test_the_passes_looked_at_are_ever_further_apart():
    passes, looked = PassSelection(), []
    for number in range(1, 70):
        if [passes.reach(layer) for layer in (2, 5)] == [True, True]:
            looked.append(number)
    assert looked == [1, 2, 4, 8, 16, 32, 64]
    assert passes.count == len(looked)


# --- attention


def by_paged(checks: ReferenceChecks, case: Case, mask_off_by: int = 0) -> None:
    """A layer's turn with `paged`, through the whole of its forward pass."""
    s, cached = case.shape, case.fresh_cache()
    attention = PagedAttention(s.kv_heads * s.group, s.head_size, s.head_size**-0.5, s.kv_heads)
    attention.checks = checks
    table = torch.from_numpy(case.table)
    rows = batch_rows(case.starts.tolist(), case.lengths.tolist(), table, s.block_size)
    masks = [
        torch.ones(row.queries, row.length, dtype=torch.bool).tril(
            row.length - row.queries + mask_off_by
        )
        for row in rows
    ]
    slots = [
        row.blocks[token // s.block_size] * s.block_size + token % s.block_size
        for row in rows
        for token in range(row.length - row.queries, row.length)
    ]
    batch, output = PagedMetadata(rows, masks, torch.stack(slots)), torch.empty_like(case.query)
    attention.forward(LAYER, case.query, case.key, case.value, cached, batch, output)


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_as_it_should_be_is_the_reference_s(by_block: bool, dtype: Any):
    checks = ReferenceChecks()
    for seed in range(PASSES):
        shape = replace(SMALL, dtype=dtype, by_block=by_block)
        by_paged(checks, Case(shape, seed))
    assert checks.facts["compared"] == 3
    assert checks.facts["differing"] == 0, checks.first
    assert 0 < checks.facts["largest_error"] < checks.facts["tolerance"] / 4


@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_fault_in_plain_attention_is_noticed(off_by: int):
    checks = ReferenceChecks()
    for seed in range(PASSES):
        by_paged(checks, Case(SMALL, seed), off_by)
    assert checks.differing > 0


# --- copies: out, the blocks given to others, in again


class OneShort(copies.PerBlock):
    def into(self, cache: Any, blocks: Any, host: Any, of: Any) -> None:
        super().into(cache, blocks[:-1], host, of[:-1])


class Rotated(copies.Coalesced):
    def into(self, cache: Any, blocks: Any, host: Any, of: Any) -> None:
        super().into(cache, blocks, host, (*of[1:], of[0]))


class FirstLayer(copies.PerBlock):
    def out(self, cache: Any, blocks: Any, host: Any, to: Any) -> None:
        super().out(cache[:1], blocks, host[:1], to)


class KeysOnly(copies.PerBlock):
    def into(self, cache: Any, blocks: Any, host: Any, of: Any) -> None:
        """The first half of each plane's bytes: vLLM's caches have K before V."""
        half = [plane[:, : plane.shape[1] // 2] for plane in cache]
        super().into(half, blocks, [plane[:, : plane.shape[1] // 2] for plane in host], of)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Blocks left, blocks returned to and host blocks between, two or more of each."""
    count = draw(st.integers(2, 7))
    old, new = (draw(st.permutations(range(BLOCKS)))[:count] for _ in range(2))
    return tuple(old), tuple(new), tuple(draw(st.permutations(range(9)))[:count])


def as_given(blocks: tuple[int, ...]) -> tuple[int, ...]:
    return blocks


def exchanged(
    way: Any, by_block: bool, places: tuple[tuple[int, ...], ...], ordered: Any = as_given
) -> SwapChecks:
    """The checks after one request was copied out, of blocks in this order, and in again."""
    old, new, host_blocks = places
    caches, has = cache(by_block), {"7": (*old, 0)}
    layers, planes = (
        {f"layer {n}": one for n, one in enumerate(caches)},
        copies.cache_planes(caches),
    )
    host, _ = copies.host_planes(planes, 9, pinned=False)
    checks = SwapChecks(layers, has.__getitem__)
    checks.record_swap_out("7", len(old))
    way.out(planes, ordered(old), host, host_blocks)
    for layer in caches:
        layer.fill_(7)  # the blocks were others' meanwhile
    has["7"] = (*new, 1)  # the last is for tokens that are still to come
    checks.record_swap_in("7", range(len(old)))
    way.into(planes, new, host, host_blocks)
    checks.compare_resumed(["5", "7"])
    return checks


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("way", [copies.PerBlock(), copies.Coalesced()])
@given(exchanges())
def test_blocks_that_come_back_unchanged_do_not_differ(by_block: bool, way: Any, places: Any):
    checks = exchanged(way, by_block, places)
    assert checks.facts == {"compared": 1, "differing": 0, "first": ""}


@pytest.mark.parametrize("way", [OneShort(), Rotated(), FirstLayer(), KeysOnly()])
@given(exchanges())
def test_a_copy_that_is_not_whole_is_noticed(way: Any, places: Any):
    checks = exchanged(way, False, places)
    assert (checks.compared, checks.differing) == (1, 1)
    assert checks.first.startswith("request 7: ")


@given(exchanges())
def test_blocks_that_are_copied_in_another_order_are_noticed(places: Any):
    checks = exchanged(copies.PerBlock(), False, places, ordered=lambda blocks: blocks[::-1])
    assert (checks.compared, checks.differing) == (1, 1)


def test_only_resumed_requests_are_compared_and_only_once():
    caches = {f"layer {n}": one for n, one in enumerate(cache(False))}
    checks = SwapChecks(caches, lambda _: (1, 2))
    checks.compare_resumed(["7"])
    assert checks.compared == 0
    checks.record_swap_out("7", 2)
    checks.record_swap_in("7", range(2))
    checks.compare_resumed(["8"])
    assert checks.compared == 0
    checks.compare_resumed(["7", "8"])
    checks.compare_resumed(["7"])
    assert checks.facts == {"compared": 1, "differing": 0, "first": ""}
