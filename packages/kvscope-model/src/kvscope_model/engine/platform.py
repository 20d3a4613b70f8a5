"""`modeled`: the costs of some hardware, and KV events as its kernels would record them."""

import os
import tempfile
from contextlib import AbstractContextManager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.api.engines import VirtualPlatform
from kvscope.api.models import Model
from kvscope_model.capacity import operators, planned_node
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.device import Modeled

if TYPE_CHECKING:
    from kvscope_model.engine.cost import Cost
    from kvscope_model.engine.tracer import ModeledTracer


class ModeledPlatform(VirtualPlatform):
    """vLLM on modeled hardware."""

    listener: "ModeledTracer | None" = None

    @property
    def planned_gpu(self) -> Gpu | None:
        """The GPU that vLLM finds; None where its layers are not asked what they keep."""
        device = self.experiment.device
        assert isinstance(device, Modeled)
        return device.gpu if Model.of(self.experiment).family == "hf" else None

    def environment(self) -> dict[str, str]:
        """Variables with which vLLM finds the GPU, and decides by it."""
        if not (gpu := self.planned_gpu):
            return {}
        node, before = _node(gpu.name.replace(" ", "-")), dict(os.environ)
        after = planned_node.environment(Path(node.name), gpu, 1, before)
        return {name: value for name, value in after.items() if before.get(name) != value}

    def run_engine(self, directory: Path) -> AbstractContextManager[Any]:
        """vLLM's engine, until the end of a `with` block."""
        if self.planned_gpu:
            operators.complete()
        return super().run_engine(directory)

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


@cache
def _node(gpu: str) -> tempfile.TemporaryDirectory[str]:
    """The directory that describes a GPU; it lasts as long as this process."""
    return tempfile.TemporaryDirectory(prefix=f"kvscope-{gpu}-")
