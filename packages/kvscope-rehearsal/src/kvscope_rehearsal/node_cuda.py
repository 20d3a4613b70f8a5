"""vLLM's CUDA platform on a node that has no GPU: what it says of itself; see `platform`."""

from typing import Any

from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability

from kvscope_rehearsal.device import Properties, device_count, gpus


class NodeCuda(NonNvmlCudaPlatform):
    """vLLM's CUDA platform, with the node's GPU, whose questions initialize nothing."""

    dispatch_key: str = "CPU"  # where tensors are in truth
    dist_backend: str = "gloo"

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        """The compute capability."""
        major, minor = gpus().capability
        return DeviceCapability(major=major, minor=minor)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Its name, as the node has it."""
        return gpus().name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of its memory."""
        return gpus().memory_bytes

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> Any:
        """Its UUID."""
        return Properties().uuid

    @classmethod
    def device_count(cls) -> int:
        """How many GPUs this process sees."""
        return device_count()
