"""What an experiment's passes and copies cost, as the executor needs it."""

from collections.abc import Iterable, Sequence

from kvscope.engine.overflow.copies import contiguous_runs
from kvscope.plan.devices.modeled import Modeled
from kvscope.plan.experiment import Experiment
from kvscope.plan.hardware.cost import LayerCost, copy_s


class Cost:
    """Seconds of the passes and copies of one experiment."""

    def __init__(self, experiment: Experiment) -> None:
        device = experiment.device
        assert isinstance(device, Modeled)
        self.hardware = device.numbers
        self._passes = device.pass_cost(self.hardware, experiment.model, experiment.batching.name)
        self.pieces = experiment.cache.pieces(experiment.model.layers)
        self.block_bytes = experiment.block_bytes
        self.memory = str(getattr(experiment.overflow, "host_memory", "pinned"))
        self.coalesced = getattr(experiment.overflow, "copies", "") == "coalesced"

    def pass_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a pass of requests, each with its tokens and those in the cache before."""
        return self._passes.rows_s(rows)

    def layer_cost(self, rows: Iterable[tuple[int, int]]) -> LayerCost:
        """Of each layer of the same pass."""
        return self._passes.layer_cost(rows)

    def copy_s(self, host_blocks: Sequence[int], direction: str) -> tuple[float, float]:
        """Seconds to copy to or from these blocks of the host pool: on the device, and issued."""
        if not self.coalesced:
            copies = len(host_blocks) * self.pieces
            piece_bytes = self.block_bytes / self.pieces
            return copy_s(self.hardware, copies, piece_bytes, self.memory, direction)
        moved = len(host_blocks) * self.block_bytes
        copies = sum(1 for _ in contiguous_runs(host_blocks)) * self.pieces
        device_s, issue_s = copy_s(self.hardware, copies, moved / copies, self.memory, direction)
        # The device gathers or scatters the cache's blocks: it reads and writes each byte once.
        reads = self.hardware.memory_bytes_per_s * self.hardware.read_share
        return device_s + 2 * moved / reads, issue_s
