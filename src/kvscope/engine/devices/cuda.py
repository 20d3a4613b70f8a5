"""`cuda`: vLLM's GPU build on one NVIDIA GPU."""

import os
from collections.abc import Callable
from typing import Any, ClassVar

from kvscope.base.errors import BadInput
from kvscope.base.time_sources import MEASURED, REHEARSED
from kvscope.engine.devices.vllm_platform import VllmPlatform
from kvscope.engine.vllm.preload import GPU_WORKER
from kvscope.tables.copies import DEVICE_CLOCK


class CudaPlatform(VllmPlatform):
    """The GPU device: copies and kernels are launched by the host, and timed on the GPU."""

    worker_modules: ClassVar[tuple[str, ...]] = (GPU_WORKER,)
    # CUDA graphs are traced kernel by kernel; by default a whole graph is one row.
    profiler_options: ClassVar[tuple[str, ...]] = ("--trace=cuda,nvtx", "--cuda-graph-trace=node")

    @property
    def time_source(self) -> str:
        """Measured where there is a GPU; rehearsed where a CPU is in its place."""
        return MEASURED if gpu_is_there() else REHEARSED

    @property
    def by_clock(self) -> bool:
        """Either is of a real clock."""
        return True

    @property
    def copy_clock(self) -> str:
        """The events of the GPU's stream."""
        return DEVICE_CLOCK

    def require(self) -> None:
        """Raise BadInput where vLLM finds no GPU, or is not built for one."""
        import torch

        from kvscope.engine.vllm import platforms

        if not platforms.is_cuda():
            raise BadInput(
                f"device=cuda needs an NVIDIA GPU and vLLM's build for it, and vLLM here has "
                f"platform {platforms.name() or 'none'}; run `make env DEVICE=cuda` on "
                "a machine with a GPU (`kvscope doctor` says what it has), or set device=cpu"
            )
        if not torch.cuda.device_count():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise BadInput(
                f"device=cuda needs an NVIDIA GPU, and CUDA_VISIBLE_DEVICES ({visible!r}) shows "
                "none; name one that `nvidia-smi -L` lists, or unset it"
            )

    def engine_arguments(self) -> dict[str, Any]:
        """kvscope's attention is requested by the name of its slot."""
        return {"attention_backend": self.slot} if self.backend else {}

    def timed(self, copy: Callable[[], None]) -> Callable[[], float]:
        """Time a copy by CUDA events on its stream."""
        import torch

        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        copy()
        after.record()

        def elapsed_s() -> float:
            after.synchronize()
            return float(before.elapsed_time(after)) * 1e-3

        return elapsed_s

    def accelerators(self) -> list[dict[str, Any]]:
        """The GPUs that this process sees; empty if CUDA fails, which the run's reason reports."""
        import torch

        count = torch.cuda.device_count()
        try:
            properties = [torch.cuda.get_device_properties(i) for i in range(count)]
        except RuntimeError:
            return []
        return [{"name": p.name, "memory_bytes": p.total_memory} for p in properties]


def gpu_is_there() -> bool:
    """Whether vLLM's platform is its own, the driver has a device, and Triton compiles for it.

    The driver is asked below torch's Python functions, which may be others' in the place of
    torch's own. CPU builds of torch cannot ask it.
    """
    import torch

    from kvscope.engine.vllm import platforms

    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return platforms.is_vllms() and not interpreted and count is not None and count() > 0
