"""Copies of blocks between the KV cache and the host pool.

Both memories are viewed as planes: two-dimensional tensors of bytes with one row per block. A cache
laid out layer by layer has one plane per layer; one that keeps all layers of a block together has a
single plane.
"""

import ctypes
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

Planes = list[torch.Tensor]


def cache_planes(caches: Sequence[torch.Tensor]) -> Planes:
    """The planes of vLLM's KV caches, one tensor (blocks, …) of each layer, in order.

    ValueError if the bytes of a layer's block do not lie in one piece.
    """
    views = [_bytes_of(cache) for cache in caches]
    width, stride = views[0].shape[1], views[0].stride(0)
    packed = stride == width * len(views) and all(
        after.storage_offset() - before.storage_offset() == width
        for before, after in pairwise(views)
    )
    if not packed:
        return views
    first = views[0]
    return [first.as_strided((first.shape[0], stride), (stride, 1), first.storage_offset())]


def _bytes_of(cache: torch.Tensor) -> torch.Tensor:
    """A layer's cache as (blocks, bytes of a block), whatever the order of its inner axes."""
    size, width = cache.element_size(), cache[0].numel() * cache.element_size()
    expected = 1
    for stride, length in sorted(zip(cache.stride()[1:], cache.shape[1:], strict=True)):
        if length > 1 and stride != expected:
            raise ValueError(f"a block of shape {tuple(cache.shape[1:])} lies in several pieces")
        expected *= length
    storage = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
    return storage.as_strided(
        (cache.shape[0], width), (cache.stride(0) * size, 1), cache.storage_offset() * size
    )


def host_planes(like: Planes, blocks: int, pinned: bool) -> tuple[Planes, str]:
    """A host pool of `blocks` blocks for these planes, all its pages present.

    Returns it with a word on the memory: 'pinned' (page-locked for the GPU), 'locked' (page-locked
    by the operating system: there is no GPU to pin for), 'pageable', or 'not lockable' if it was
    asked for and there is no such memory.
    """
    on_gpu = like[0].is_cuda
    pool = [
        torch.zeros((blocks, plane.shape[1]), dtype=torch.uint8, pin_memory=pinned and on_gpu)
        for plane in like
    ]
    for plane in pool:
        plane.fill_(1)  # zeroed pages may be mapped on first use only: use them now
    if not pinned:
        return pool, "pageable"
    if on_gpu:
        return pool, "pinned" if all(plane.is_pinned() for plane in pool) else "not lockable"
    locked = all([_lock(plane) for plane in pool])
    return pool, "locked" if locked else "not lockable"


def _lock(plane: torch.Tensor) -> bool:
    mlock = ctypes.CDLL(None, use_errno=True).mlock
    return bool(mlock(ctypes.c_void_p(plane.data_ptr()), ctypes.c_size_t(plane.numel())) == 0)


class PerBlock:
    """A copy for each block and plane, as vLLM 0.4.2 issued them.

    On a GPU by vLLM's own loop of asynchronous copies. A CPU's are issued from here, which adds
    most of a microsecond to each.
    """

    def out(self, cache: Planes, blocks: Sequence[int], host: Planes, to: Sequence[int]) -> None:
        """Copy blocks of the cache to the host."""
        self._copy(cache, blocks, host, to)

    def into(self, cache: Planes, blocks: Sequence[int], host: Planes, of: Sequence[int]) -> None:
        """Copy blocks of the host into the cache."""
        self._copy(host, of, cache, blocks)

    def _copy(self, source: Planes, rows: Sequence[int], target: Planes, to: Sequence[int]) -> None:
        mapping = list(zip(rows, to, strict=True))
        for from_, into in zip(source, target, strict=True):
            width = from_.shape[1]
            if from_.is_cuda or into.is_cuda:
                from vllm._custom_ops import swap_blocks

                assert from_.is_contiguous(), "vLLM's loop takes blocks that lie one after another"
                swap_blocks(from_, into, width, torch.tensor(mapping))
                continue
            first, stride = from_.data_ptr(), from_.stride(0)
            beginning, step = into.data_ptr(), into.stride(0)
            for row, place in mapping:
                ctypes.memmove(beginning + place * step, first + row * stride, width)


class Coalesced:
    """A copy for each plane and stretch of neighbouring host blocks.

    The cache's blocks, which are neighbours only by chance, are gathered and scattered by the
    device itself: a GPU's link sees large copies.
    """

    def out(self, cache: Planes, blocks: Sequence[int], host: Planes, to: Sequence[int]) -> None:
        """Gather blocks of the cache on the host."""
        for first, last, place in contiguous_runs(to):
            rows = _index(blocks[first:last], cache[0].device)
            for device, pinned in zip(cache, host, strict=True):
                target = pinned[place : place + last - first]
                if device.is_cuda:
                    target.copy_(device.index_select(0, rows), non_blocking=True)
                else:
                    torch.index_select(device, 0, rows, out=target)

    def into(self, cache: Planes, blocks: Sequence[int], host: Planes, of: Sequence[int]) -> None:
        """Scatter blocks of the host over the cache."""
        for first, last, place in contiguous_runs(of):
            rows = _index(blocks[first:last], cache[0].device)
            for device, pinned in zip(cache, host, strict=True):
                source = pinned[place : place + last - first]
                if device.is_cuda:
                    device.index_copy_(0, rows, source.to(device.device, non_blocking=True))
                else:  # torch's scatter of rows of bytes is some 20 times slower on a CPU
                    device.numpy()[rows.numpy()] = source.numpy()


def _index(rows: Sequence[int], device: torch.device) -> torch.Tensor:
    """Row numbers as a tensor on the device; copied to a GPU without waiting."""
    if device.type != "cuda":
        return torch.tensor(rows)
    host = torch.tensor(rows, device="cpu", pin_memory=True)
    return host.to(device, non_blocking=True)


def contiguous_runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first, last, row): rows[first:last] are consecutive and begin with `row`."""
    first = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[first] + end - first:
            yield first, end, rows[first]
            first = end
