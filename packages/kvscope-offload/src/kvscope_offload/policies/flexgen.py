"""`flexgen`: K and V on the host as FlexGen publishes it: pageable memory, synchronous blocks.

FlexGen leaves the cache unpinned ("disable pin_memory due to high memory overhead", its
`TorchDevice.init_cache_one_gpu_batch`), so the host first copies each load to a pinned buffer, and
it waits for all streams after each mini-batch of each layer.
"""

from typing import ClassVar

from kvscope_offload.pipeline import Style
from kvscope_offload.policy import OffloadPolicy


class FlexGen(OffloadPolicy):
    """The published baseline; `kv_only` is the same placement without these two costs."""

    style: ClassVar[Style] = Style(spread_weights=False, synchronous=True)
    pinned: ClassVar[bool] = False
    balances: ClassVar[bool] = False
