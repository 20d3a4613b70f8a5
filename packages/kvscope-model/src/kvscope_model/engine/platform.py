"""`modeled`: the costs of some hardware, and KV events as its kernels would record them."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.api.engines import VirtualPlatform

if TYPE_CHECKING:
    from kvscope_model.engine.cost import Cost
    from kvscope_model.engine.tracer import ModeledTracer


class ModeledPlatform(VirtualPlatform):
    """vLLM on modeled hardware."""

    listener: "ModeledTracer | None" = None

    @cached_property
    def costs(self) -> "Cost":
        """Costs of passes and copies."""
        from kvscope_model.engine.cost import Cost

        return Cost(self.experiment)

    def tracer(self, directory: Path) -> "ModeledTracer":
        """Events are made when they are read: nothing is stored meanwhile."""
        from kvscope_model.engine.tracer import ModeledTracer

        self.listener = ModeledTracer(self.experiment, self.clock, self.costs)
        return self.listener

    def observe(self, scheduler: Any, recorder: Any) -> None:
        """Layers have times of their own where they are traced."""
        super().observe(scheduler, recorder)
        if self.listener is not None:
            self.listener.layer_times = lambda: recorder.recording.layers
