"""Copies of a rehearsed GPU: the host moves the bytes, by the rules of memory and of streams."""

import ctypes

import torch

from kvscope_rehearsal import memory
from kvscope_rehearsal.order import ORDER, current_stream


class HostCopies:
    """`operators.Copies` by the host, at once."""

    def one(self, to: int, of: int, size: int) -> None:
        """Copy `size` bytes; RuntimeError where neither is the GPU's, or one ends before."""
        stream, regions = current_stream(), [memory.region_at(place, size) for place in (to, of)]
        if not any(region is not None and not region.pinned for region in regions):
            raise RuntimeError("cudaMemcpyAsync: invalid argument: no address is the GPU's")
        for region in regions:
            if region is not None:
                ORDER.touch(region, stream, "cudaMemcpyAsync")
        ctypes.memmove(to, of, size)
        point = ORDER.launch(stream)
        if regions[0] is not None:
            regions[0].written = point
        if any(region is None for region in regions):
            ORDER.host_waits(stream)  # CUDA copies ordinary memory of the host before it returns

    def blocks(self, to: torch.Tensor, of: torch.Tensor, width: int, mapping: torch.Tensor) -> None:
        """Copy them one after the other."""
        target, source = to.data_ptr(), of.data_ptr()
        for block, place in mapping.tolist():
            self.one(target + place * width, source + block * width, width)

    def batch(
        self, to: torch.Tensor, of: torch.Tensor, sizes: torch.Tensor, any_order: bool
    ) -> None:
        """Copy them one after the other."""
        for place, begin, size in zip(to.tolist(), of.tolist(), sizes.tolist(), strict=True):
            self.one(place, begin, size)
