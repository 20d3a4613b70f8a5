"""Copies between cache and host pool, and the books of the pool, without an engine."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is missing: run `make env`")

import torch

from kvscope.engine.overflow.host_pool import HostPool
from kvscope.engine.vllm.connectors import copies

pytestmark = pytest.mark.engine

LAYERS, BLOCKS, HEADS, SIZE, WIDTH = 3, 11, 2, 4, 6


def cache(by_block: bool, heads_first: bool = True) -> list[torch.Tensor]:
    """Layers' caches (blocks, heads, size, width) as vLLM views them in one buffer."""
    inner = (HEADS, SIZE, WIDTH) if heads_first else (SIZE, HEADS, WIDTH)
    outer = (BLOCKS, LAYERS) if by_block else (LAYERS, BLOCKS)
    whole = torch.randn(*outer, *inner)
    layers = [whole[:, i] if by_block else whole[i] for i in range(LAYERS)]
    return layers if heads_first else [layer.transpose(1, 2) for layer in layers]


layouts = pytest.mark.parametrize("by_block", [False, True], ids=["by_layer", "by_block"])
ways = pytest.mark.parametrize("way", [copies.PerBlock(), copies.Coalesced()], ids=["each", "all"])


@layouts
@pytest.mark.parametrize("heads_first", [True, False])
def test_a_row_of_the_planes_is_a_block_with_all_its_layers(by_block, heads_first):
    layers = cache(by_block, heads_first)
    planes = copies.cache_planes(layers)
    assert len(planes) == (1 if by_block else LAYERS)
    for plane in planes:
        plane[4] = 0
    for layer in layers:
        assert not layer[4].any()
        assert layer[3].all()
        assert layer[5].all()


def test_a_block_in_several_pieces_is_refused():
    with pytest.raises(ValueError, match="several pieces"):
        copies.cache_planes([torch.zeros(BLOCKS, HEADS, SIZE, 2 * WIDTH)[..., :WIDTH]])


@layouts
@ways
@given(st.data())
def test_blocks_that_are_copied_out_and_in_again_are_unchanged(by_block, way, data):
    layers = cache(by_block)
    planes = copies.cache_planes(layers)
    host, _ = copies.host_planes(planes, 9, pinned=False)
    count = data.draw(st.integers(1, 7))
    old, new = (
        data.draw(st.permutations(range(BLOCKS)).map(lambda p: tuple(p[:count]))) for _ in range(2)
    )
    places = tuple(sorted(data.draw(st.permutations(range(9)))[:count]))
    before = [layer.clone() for layer in layers]
    way.out(planes, old, host, places)
    for layer in layers:
        layer.fill_(7)
    way.into(planes, new, host, places)
    for layer, was in zip(layers, before, strict=True):
        for here, there in zip(old, new, strict=True):
            assert torch.equal(layer[there], was[here])
        untouched = [row for row in range(BLOCKS) if row not in new]
        assert (layer[untouched] == 7).all()


@given(st.lists(st.integers(0, 30), unique=True, max_size=20))
def test_stretches_cover_every_row_once_and_in_order(rows):
    covered = [
        row + i for first, last, row in copies.contiguous_runs(rows) for i in range(last - first)
    ]
    assert covered == rows


def test_pinned_memory_without_a_gpu_is_locked_or_says_that_it_is_not():
    planes = copies.cache_planes(cache(by_block=False))
    assert copies.host_planes(planes, 2, pinned=True)[1] in ("locked", "not lockable")
    assert copies.host_planes(planes, 2, pinned=False)[1] == "pageable"


def locked_bytes() -> int:
    """Memory of this process that the operating system may not take away."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmLck:"))
    return int(line.split()[1]) * 1024


def test_a_pool_is_locked_if_it_says_so_and_not_otherwise():
    planes, blocks = copies.cache_planes(cache(by_block=False)), 20_000
    size = sum(plane.shape[1] for plane in planes) * blocks
    for pinned in (False, True):
        before = locked_bytes()
        pool, word = copies.host_planes(planes, blocks, pinned)
        assert (locked_bytes() - before >= size) == (word == "locked")
        assert sum(plane.numel() for plane in pool) == size


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=40))
def test_no_block_of_the_pool_is_held_twice_or_lost(moves):
    """A request that holds blocks gives them back; a request without blocks asks for some."""
    pool = HostPool(10)
    held: dict[str, tuple[int, ...]] = {}
    for number, count in moves:
        name = str(number)
        if name in held:
            released = pool.release(name)
            assert released is not None
            assert released.blocks == held.pop(name)
        elif (given_to := pool.allocate(name, 100, count)) is None:
            assert count > 10 - pool.used
        else:
            held[name] = given_to.blocks
        blocks = [block for owned in held.values() for block in owned]
        assert len(set(blocks)) == len(blocks) == pool.used
        assert all((str(n) in pool) == (str(n) in held) for n in range(6))
