"""The offload engine as a device: what stands where vLLM's engine stands in other runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kvscope.engine.devices.platform import Platform
from kvscope.errors import BadInput
from kvscope.offload.device import OffloadDevice

if TYPE_CHECKING:
    from kvscope.offload.server import OffloadServer


class OffloadPlatform(Platform):
    """Runs kvscope's own engine; vLLM is not imported."""

    times_layers: ClassVar[bool] = False

    @contextmanager
    def run_engine(self, directory: Path) -> "Iterator[OffloadServer]":
        """The engine of the experiment, until the end of the `with` block."""
        import torch

        from kvscope.offload.engine import OffloadEngine
        from kvscope.offload.server import OffloadServer

        experiment, device = self.experiment, self.experiment.device
        assert isinstance(device, OffloadDevice)
        if experiment.workload.timeout_s is not None:
            raise BadInput(
                f"workload.timeout_s ({experiment.workload.timeout_s:g}) must be null on device "
                "offload, which computes a batch to its end"
            )
        if device.torch_device == "cpu":
            torch.set_num_threads(device.threads)
        engine = OffloadEngine(
            experiment.model,
            device.offload_policy(experiment.cache_blocks * experiment.block_bytes),
            block_size=experiment.cache.block_size,
            device=device.torch_device,
            seed=experiment.seed,
            link_bytes_per_s=device.link_bytes_per_s,
        )
        try:
            yield OffloadServer(self, engine)
        finally:
            engine.close()

    def environment(self) -> dict[str, str]:
        """On the CPU no GPU is seen, and products use no more threads than the device has."""
        device = self.experiment.device
        assert isinstance(device, OffloadDevice)
        if device.torch_device == "cuda":
            return {}
        return {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(device.threads)}

    def accelerators(self) -> list[dict[str, Any]]:
        """The GPU, where there is one."""
        device = self.experiment.device
        assert isinstance(device, OffloadDevice)
        if device.torch_device == "cpu":
            return []
        import torch

        found = torch.cuda.get_device_properties(0)
        return [{"name": found.name, "memory_bytes": found.total_memory}]
