"""`cuda`: vLLM on one NVIDIA GPU."""

from typing import ClassVar

from kvscope.plan.device import Device, Kernels, Speed
from kvscope.plan.parts import Conditions


class Cuda(Device):
    """One NVIDIA GPU: weights and KV cache are in its memory, which is not planned."""

    platform: ClassVar[str] = "kvscope.engine.devices.cuda:CudaPlatform"
    attentions: ClassVar[dict[str, Kernels]] = {"vllm": Kernels(16), "instrumented": Kernels()}
    # A GPU of a data centre.
    speed: ClassVar[Speed] = Speed(90, 1e9, 60, 0.02, 1e-4, 1e14, 1e12)
    gpus: ClassVar[int] = 1
    rehearsed: ClassVar[bool] = True
    copies_awaited: ClassVar[bool] = False
    forces_outputs: ClassVar[bool] = True

    def memory_bytes(self, experiment: Conditions) -> int:
        """0: weights and KV cache are not in host memory."""
        return 0

    def loading_bytes(self, experiment: Conditions) -> int:
        """The weights, which pass through host memory when they are loaded."""
        return experiment.model.weight_bytes
