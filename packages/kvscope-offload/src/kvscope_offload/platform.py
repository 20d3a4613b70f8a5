"""The offload engine as a device: what stands where vLLM's engine stands in other runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.api.engines import Platform, VirtualClock
from kvscope.api.errors import BadInput
from kvscope.api.experiments import Experiment
from kvscope_offload.device import OffloadDevice, OffloadModeled

if TYPE_CHECKING:
    from kvscope_offload.server import OffloadServer


class OffloadPlatform(Platform):
    """Runs kvscope's own engine; vLLM is not imported."""

    @contextmanager
    def run_engine(self, directory: Path) -> "Iterator[OffloadServer]":
        """The engine of the experiment, until the end of the `with` block."""
        import torch

        from kvscope_offload.server import OffloadServer
        from kvscope_offload.tensor_engine import TensorEngine

        experiment, device = self.experiment, self.experiment.device
        assert isinstance(device, OffloadDevice)
        refuse_timeout(experiment)
        if device.torch_device == "cpu":
            torch.set_num_threads(device.threads)
        engine = TensorEngine(
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
        """The GPU, if any."""
        device = self.experiment.device
        assert isinstance(device, OffloadDevice)
        if device.torch_device == "cpu":
            return []
        import torch

        properties = torch.cuda.get_device_properties(0)
        return [{"name": properties.name, "memory_bytes": properties.total_memory}]


class ModeledOffloadPlatform(Platform):
    """The engine's schedule on a virtual clock, by the costs of a GPU's data file."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.clock: VirtualClock = VirtualClock()

    @contextmanager
    def run_engine(self, directory: Path) -> "Iterator[OffloadServer]":
        """The modeled engine of the experiment."""
        from kvscope_offload.modeled_engine import modeled_engine
        from kvscope_offload.server import OffloadServer

        experiment, device = self.experiment, self.experiment.device
        assert isinstance(device, OffloadModeled)
        refuse_timeout(experiment)
        yield OffloadServer(self, modeled_engine(experiment, device, self.clock))


def refuse_timeout(experiment: Experiment) -> None:
    """BadInput if requests may be aborted: a batch is computed to its end."""
    workload = experiment.workload
    if workload.comes_by_pass:
        raise BadInput(
            f"workload.arrival must not be {workload.arrival!r} on device "
            f"{experiment.device.name}, which computes a batch to its end"
        )
    if workload.timeout_s is not None:
        raise BadInput(
            f"workload.timeout_s ({workload.timeout_s:g}) must be null on device "
            f"{experiment.device.name}, which computes a batch to its end"
        )
