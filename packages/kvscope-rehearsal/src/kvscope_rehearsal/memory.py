"""Regions of memory by address: a GPU's, or the host's, page-locked or not.

All of it is this process's. A region is an array that PyTorch's tensors are made of, and known by
the address at which it begins, which is that of the storage of every tensor in it.
"""

import weakref
from typing import Any, TypeAlias

import numpy as np
import torch

from kvscope_rehearsal.order import ORDER, Uses, current_stream

ALIGNMENT = 256


class Region(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of one allocation: `pinned` if page-locked memory of the host, else a GPU's.

    `written` is the last operation that wrote to it (`order.Point`), None if the host did; `uses`
    are those of streams other than the one that it was allocated on.
    """

    pinned: bool
    written: Any
    uses: Uses


Regions: TypeAlias = "weakref.WeakValueDictionary[int, Region]"
_regions: Regions = weakref.WeakValueDictionary()
_held: dict[bool, int] = {False: 0, True: 0}  # bytes, by `pinned`
_most = 0


def region_of(tensor: torch.Tensor) -> Region | None:
    """The region of a tensor; None of the host's ordinary memory."""
    return _regions.get(tensor.untyped_storage().data_ptr())


def allocate(tensor: torch.Tensor, pinned: bool = False) -> torch.Tensor:
    """A copy of a tensor in a region of its own, with the same strides."""
    global _most
    extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    size = max(1, extent if tensor.numel() else 0) * tensor.element_size()
    region = np.empty(-(-size // ALIGNMENT) * ALIGNMENT, np.uint8).view(Region)
    region.pinned, region.written, region.uses = pinned, None, Uses(current_stream())
    _regions[region.ctypes.data] = region
    _held[pinned] += region.nbytes
    _most = max(_most, _held[False])
    weakref.finalize(region, _free, region.nbytes, pinned, region.uses)
    flat = torch.from_numpy(region).view(tensor.dtype)
    copied = flat.as_strided(tensor.shape, tensor.stride())
    return copied.copy_(tensor)


def _free(size: int, pinned: bool, uses: Uses) -> None:
    _held[pinned] -= size
    if not pinned:  # PyTorch itself waits for what uses page-locked memory
        ORDER.free(uses)


def held_bytes() -> int:
    """Bytes of the GPU's memory in use."""
    return _held[False]


def most_bytes() -> int:
    """The most that were in use since `forget_most`."""
    return _most


def forget_most() -> None:
    """Begin `most_bytes` anew."""
    global _most
    _most = _held[False]


def region_at(address: int, size: int) -> Region | None:
    """The region that holds these bytes; None of the host's ordinary memory.

    RuntimeError if they begin in a region and end beyond it.
    """
    for begin, region in _regions.items():
        if begin <= address < begin + region.nbytes:
            if address + size > begin + region.nbytes:
                raise RuntimeError(f"an illegal memory access: {size} bytes end beyond a region")
            return region
    return None
