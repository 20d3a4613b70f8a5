"""FlexGen without a GPU: its CUDA device is main memory, its float16 is float32.

Only what torch cannot do here is replaced; streams, events and copy threads are FlexGen's own. What
crosses between its devices is counted.
"""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch


class PlainTorch:
    """torch, whose float16 is float32 and whose pinned memory is marked so."""

    float16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, shape: Any, dtype: Any, pin_memory: bool = False, **keys: Any) -> Any:
        return (
            pinned(torch.empty(shape, dtype=dtype))
            if pin_memory
            else torch.empty(shape, dtype=dtype)
        )


def pinned(tensor: Any) -> Any:
    """The tensor, marked as pinned."""
    tensor.is_pinned = lambda: True
    return tensor


def without_gpu(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Let FlexGen run; the bytes that cross, by direction and kind of host memory."""
    from flexgen import flex_opt, pytorch_backend, utils

    crossed: Counter[str] = Counter()
    for name in ("synchronize", "set_device", "Stream"):
        patch.setattr(torch.cuda, name, lambda *_: None)
    patch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    patch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = SimpleNamespace(name="none", total_memory=0)
    patch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    for name in ("pin_memory", "cuda", "half"):
        patch.setattr(torch.Tensor, name, lambda tensor: tensor)
    patch.setattr(pytorch_backend, "torch", PlainTorch())
    patch.setattr(pytorch_backend, "GB", 2**20)  # elements of a copy thread's buffer
    patch.setitem(utils.np_dtype_to_torch_dtype, np.float16, torch.float32)

    made, kinds = pytorch_backend.TorchDevice.__init__, pytorch_backend.DeviceType
    copy = pytorch_backend.general_copy

    def make(self: Any, name: str) -> None:
        made(self, "cpu")
        self.device_type = kinds.CUDA if name.startswith("cuda") else kinds.CPU

    def count(dst: Any, dst_indices: Any, src: Any, src_indices: Any) -> None:
        of, to = src.device.device_type.name, dst.device.device_type.name
        host = dst if to == "CPU" else src
        memory = "pinned" if host.data.is_pinned() else "pageable"
        moved = src.data[src_indices] if src_indices else src.data
        crossed[f"{of} to {to}, {memory}"] += moved.numel() * moved.element_size()
        copy(dst, dst_indices, src, src_indices)

    patch.setattr(pytorch_backend.TorchDevice, "__init__", make)
    for module in (pytorch_backend, flex_opt):
        patch.setattr(module, "general_copy", count)
    return crossed
