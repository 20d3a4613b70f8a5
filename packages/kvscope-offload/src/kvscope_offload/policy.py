"""Decisions of an offload policy: the kept part of the context, and the schedule's overlap."""

from typing import Annotated, ClassVar, Literal

from kvscope.api.settings import Label, Option, fields
from kvscope_offload.cost import CostModel
from kvscope_offload.pipeline import Style
from kvscope_offload.split import Demand, Split, Trial


class OffloadPolicy(Option):
    """Placement of weights and context, and schedule of a step.

    `weights` are streamed from the host layer by layer, or resident on the device, as is
    `device_gib` of the cache; the host holds the rest, up to `host_gib`. A pass is cut into
    `minibatches`. Of the class: whether the host's cache is `pinned`, and whether it may be used.
    """

    style: ClassVar[Style] = Style()
    pinned: ClassVar[bool] = True
    host_cache: ClassVar[bool] = True
    balances: ClassVar[bool] = True  # mini-batches are formed by what requests load and compute

    weights: Annotated[Literal["streamed", "resident"], Label("weights")] = "streamed"
    minibatches: Annotated[fields.Count, Label("mini-batches")] = 4
    device_gib: Annotated[fields.Gib | None, Label("cache on the device (GiB)")] = None
    host_gib: Annotated[fields.Gib | None, Label("cache on the host (GiB)")] = None

    @property
    def device_bytes(self) -> float:
        """Bytes of the cache on the device, at the most."""
        return (self.device_gib or 0.0) * fields.GIB

    @property
    def streamed(self) -> bool:
        """True if each layer's weights come over the link."""
        return self.weights == "streamed"

    @property
    def schedule(self) -> Style:
        """Overlap of the schedule."""
        return self.style

    @property
    def formation(self) -> bool:
        """True if mini-batches are formed by their requests' loads and computation."""
        return self.balances

    def split(self, cost: CostModel, demand: Demand, trial: Trial) -> Split:
        """Split of the context into kept and recomputed tokens."""
        return Split()
