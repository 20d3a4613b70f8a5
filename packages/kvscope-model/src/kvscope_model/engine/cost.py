"""Seconds of an experiment's passes and copies on modeled hardware (`virtual.costs.Costs`)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvscope.api.experiments import Experiment
from kvscope.api.tables import rebuilds
from kvscope_model.device import Modeled
from kvscope_model.hardware.cost import LayerCost


def stretches(blocks: Sequence[int]) -> int:
    """Number of stretches of consecutive blocks."""
    apart = sum(after != before + 1 for before, after in pairwise(blocks))
    return apart + 1 if blocks else 0


class Cost:
    """Seconds of the passes and copies of one experiment."""

    def __init__(self, experiment: Experiment) -> None:
        device = experiment.device
        assert isinstance(device, Modeled)
        self.hardware = device.numbers
        self._overflow = device.cost(self.hardware, experiment)
        self._passes = self._overflow.passes
        self.pageable = self._overflow.memory == "pageable"
        self.block_size = self._overflow.block_size
        self.block_bytes = self._overflow.block_bytes
        self.activation_block_bytes = self._overflow.activation_block_bytes

    def pass_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a pass of requests, each with its tokens and those in the cache before."""
        return self._passes.rows_s(rows)

    @property
    def between_passes_s(self) -> float:
        """The host's time between two passes."""
        return self.hardware.between_passes_s

    def layer_cost(self, rows: Iterable[tuple[int, int]]) -> LayerCost:
        """Seconds of each layer of the pass."""
        return self._passes.layer_cost(rows)

    def copy_s(self, host_blocks: Sequence[int], direction: str) -> tuple[float, float]:
        """Seconds to copy to or from these blocks of the host pool: on the device, and issued."""
        return self._overflow.swap_s(len(host_blocks), stretches(host_blocks), direction)

    @property
    def host_copies(self) -> bool:
        """True if the host copies between its passes, because there is no other device."""
        return self._passes.is_cpu

    def offloading_s(self, blocks: int, direction: str) -> float:
        """Seconds of a job of vLLM's offloading."""
        return self._overflow.offloading_s(blocks, direction)

    def rebuild_s(self, tokens: int, host_blocks: Sequence[int]) -> tuple[float, float]:
        """Seconds to fetch activations from these host blocks, and to rebuild K and V of them."""
        fetch_s = 0.0
        for first, last in rebuilds.rebuild_parts(tokens, self._overflow.block_size):
            part = host_blocks[first:last]
            fetch_s += self._overflow.fetch_s(len(part), stretches(part))[0]
        return fetch_s, self._overflow.rebuild_s(tokens)

    def save_s(self, tokens: int, runs: int) -> tuple[float, float]:
        """Seconds to write activations through: on the device, and on its link to the host."""
        return self._overflow.gather_s(tokens), self._overflow.save_s(tokens, runs)[0]
