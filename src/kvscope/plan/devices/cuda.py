"""`cuda`: vLLM on one NVIDIA GPU."""

from typing import Annotated, ClassVar

from pydantic import Field

from kvscope.base.errors import BadInput
from kvscope.plan import gpu_estimate
from kvscope.plan.device import Device, Kernels, Speed
from kvscope.plan.fields import Label, impossible
from kvscope.plan.gpu_memory import GpuMemory, gib_text
from kvscope.plan.parts import Conditions


class Cuda(Device):
    """An NVIDIA GPU: weights and KV cache are in its memory.

    `hardware` names the GPU that the experiment must fit (`gpu_estimate.MEMORY_BYTES`). It changes
    no result, so it is no part of an experiment: neither its id nor its experiment.yaml has it.
    """

    platform: ClassVar[str] = "kvscope.engine.devices.cuda:CudaPlatform"
    attentions: ClassVar[dict[str, Kernels]] = {"vllm": Kernels(16), "instrumented": Kernels()}
    # A GPU of a data centre.
    speed: ClassVar[Speed] = Speed(90, 1e9, 60, 0.02, 1e-4, 1e14, 1e12)
    gpus: ClassVar[int] = 1
    rehearsed: ClassVar[bool] = True
    copies_awaited: ClassVar[bool] = False
    forces_outputs: ClassVar[bool] = True

    hardware: Annotated[str | None, Field(exclude=True), Label("hardware", "{}")] = None

    @property
    def usable_bytes(self) -> int | None:
        """Bytes that an experiment may take of the named GPU; BadInput if it is not known."""
        return None if self.hardware is None else gpu_estimate.usable_bytes(self.hardware)

    def gpu_memory(self, experiment: Conditions) -> GpuMemory:
        """Weights, KV cache, activations, and buffers."""
        return gpu_estimate.estimate(experiment)

    def memory_bytes(self, experiment: Conditions) -> int:
        """0: weights and KV cache are not in host memory."""
        return 0

    def loading_bytes(self, experiment: Conditions) -> int:
        """The weights, which pass through host memory when they are loaded."""
        return experiment.model.weight_bytes

    def check(self, experiment: Conditions) -> None:
        """Refuse a GPU of unknown memory, and an engine that does not fit into the named GPU."""
        super().check(experiment)
        try:
            usable = self.usable_bytes
        except BadInput as error:
            raise impossible(str(error), "device.hardware") from None
        if usable is None:
            return
        memory = self.gpu_memory(experiment)
        if memory.total_bytes > usable:
            raise impossible(
                f"{gib_text(memory.total_bytes)} GiB of GPU memory ({memory.words}) must fit into "
                f"the {gib_text(usable)} GiB of device.hardware={self.hardware} that CUDA leaves "
                "free",
                "cache.blocks",
                "engine.max_num_batched_tokens",
                "device.hardware",
            )
