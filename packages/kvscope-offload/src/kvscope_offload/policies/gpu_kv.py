"""`gpu_kv`: weights and cache are on the device, where they fit: nothing crosses the link."""

from typing import Annotated, ClassVar, Literal

from kvscope.api.settings import Label
from kvscope_offload.policy import OffloadPolicy


class GpuKv(OffloadPolicy):
    """The bound that no offloading can pass."""

    host_cache: ClassVar[bool] = False

    weights: Annotated[Literal["streamed", "resident"], Label("weights")] = "resident"
