"""The memory behind the block pools: of each kind a tensor (layers, rows, width)."""

import torch

from kvscope_offload.architecture import Architecture
from kvscope_offload.blocks import Content, Kind, Place
from kvscope_offload.host_memory import host_tensor


class Storage:
    """Blocks as rows: block b of a pool is rows b * block_size and those that follow."""

    def __init__(
        self, arch: Architecture, sizes: dict[Kind, int], block_size: int, pinned: bool
    ) -> None:
        pinned = pinned and arch.device.type == "cuda"
        self.tensors: dict[Kind, torch.Tensor] = {}
        for kind, blocks in sizes.items():
            shape = (arch.model.layers, blocks * block_size, _width(arch, kind.content))
            if kind.place is Place.HOST:
                self.tensors[kind] = host_tensor(shape, arch.dtype, pinned)
            else:
                self.tensors[kind] = torch.zeros(shape, dtype=arch.dtype, device=arch.device)

    def rows(self, kind: Kind, layer: int) -> torch.Tensor:
        """All rows of one kind and layer."""
        return self.tensors[kind][layer]


def _width(arch: Architecture, content: Content) -> int:
    return 2 * arch.kv_width if content is Content.KV else arch.model.hidden_size
