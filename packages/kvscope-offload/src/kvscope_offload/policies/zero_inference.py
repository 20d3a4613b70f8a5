"""`zero_inference`: DeepSpeed-Inference's placement, weights on the host and K and V on the device.

The batch is what the device's cache has room for; the others wait for the next round.
"""

from typing import Annotated, ClassVar

from kvscope.api.settings import Label, fields
from kvscope_offload.policy import OffloadPolicy


class ZeroInference(OffloadPolicy):
    """All requests of a round in one mini-batch, the next layer's weights loaded meanwhile."""

    host_cache: ClassVar[bool] = False

    minibatches: Annotated[fields.Count, Label("mini-batches")] = 1
