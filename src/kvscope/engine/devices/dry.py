"""`dry`: vLLM's scheduler without a worker; passes and copied blocks take constant times."""

from collections.abc import Iterable, Sequence

from kvscope.engine.devices.virtual.platform import VirtualPlatform
from kvscope.plan.devices.dry import Dry
from kvscope.plan.experiment import Experiment


class DryPlatform(VirtualPlatform):
    """vLLM's scheduler, and the costs that the settings give."""

    @property
    def costs(self) -> "ConstantCosts":
        """Constant seconds of a pass and of a copied block."""
        return ConstantCosts(self.experiment)


class ConstantCosts:
    """The prices of `dry`: the host copies each block by itself, in the same time."""

    pageable = True
    host_copies = True
    between_passes_s = 0.0

    def __init__(self, experiment: Experiment) -> None:
        device, cache = experiment.device, experiment.cache
        assert isinstance(device, Dry)
        self._pass_s, self._block_s = device.pass_s, device.copy_s
        self.block_size, self.block_bytes = cache.block_size, experiment.block_bytes

    def pass_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of any pass."""
        return self._pass_s

    def copy_s(self, host_blocks: Sequence[int], direction: str) -> tuple[float, float]:
        """Seconds to copy blocks; the call returns with the last of them."""
        seconds = len(host_blocks) * self._block_s
        return seconds, seconds

    def offloading_s(self, blocks: int, direction: str) -> float:
        """Seconds of a job of vLLM's offloading."""
        return blocks * self._block_s

    def rebuild_s(self, tokens: int, host_blocks: Sequence[int]) -> tuple[float, float]:
        """Seconds to fetch inputs of attention; to rebuild K and V of them takes a pass."""
        return len(host_blocks) * self._block_s, self._pass_s

    def save_s(self, tokens: int, runs: int) -> tuple[float, float]:
        """Seconds to save inputs of attention: of a block's tokens as many as of the block."""
        return 0.0, tokens / self.block_size * self._block_s
