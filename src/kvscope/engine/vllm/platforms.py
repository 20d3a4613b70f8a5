"""vLLM's platform: the kind of device that its build, or a plug-in of it, is for."""

from vllm import platforms

__all__ = ["is_cpu", "is_cuda", "is_vllms", "name"]

# vLLM makes `platforms.current_platform` when it is first read.


def is_cpu() -> bool:
    """Whether vLLM computes on a CPU."""
    return bool(platforms.current_platform.is_cpu())


def is_cuda() -> bool:
    """Whether vLLM computes on an NVIDIA GPU, or on a platform that imitates a GPU."""
    return bool(platforms.current_platform.is_cuda())


def is_vllms() -> bool:
    """Whether the platform is vLLM's own, and not another that imitates CUDA."""
    return type(platforms.current_platform).__module__.startswith("vllm.")


def name() -> str:
    """vLLM's name of the device; '' where it has found none."""
    return str(platforms.current_platform.device_name or "")
