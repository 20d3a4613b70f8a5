"""The costs of `priced`."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvscope.engine.devices.virtual.platform import VirtualPlatform
from kvscope.plan.experiment import Experiment

PASS_S, TOKEN_S, CONTEXT_S = 4.7e-3, 2.1e-4, 4.4e-7  # of a pass, and of each token
COPY_S, BYTES_PER_S = 2e-5, {"pinned": 2e8, "pageable": 3e7}


class PricedPlatform(VirtualPlatform):
    """vLLM's scheduler, and these costs."""

    @property
    def costs(self) -> "Prices":
        """Seconds that are linear in tokens, bytes and copies."""
        return Prices(self.experiment)


class Prices:
    """The prices of an experiment: the host copies by itself."""

    host_copies = True
    between_passes_s = 4e-4

    def __init__(self, experiment: Experiment) -> None:
        cache, overflow = experiment.cache, experiment.overflow
        self.block_size, self.block_bytes = cache.block_size, experiment.block_bytes
        memory = getattr(overflow, "host_memory", "pinned")
        self.pageable = memory == "pageable"
        self._coalesced = getattr(overflow, "copies", None) == "coalesced"
        self._pieces = cache.pieces(experiment.model.layers_apart)
        self._bytes_per_s = BYTES_PER_S[memory]

    def pass_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a pass of requests, each with its tokens and those in the cache before."""
        return PASS_S + sum(new * TOKEN_S + cached * CONTEXT_S for new, cached in rows)

    def copy_s(self, host_blocks: Sequence[int], direction: str) -> tuple[float, float]:
        """Seconds to copy blocks; the call returns with the last of them."""
        apart = sum(after != before + 1 for before, after in pairwise(host_blocks))
        copies = self._pieces * (apart + 1 if self._coalesced else len(host_blocks))
        seconds = copies * COPY_S + len(host_blocks) * self.block_bytes / self._bytes_per_s
        return seconds, seconds

    def offloading_s(self, blocks: int, direction: str) -> float:
        """Seconds of a job of vLLM's offloading."""
        return blocks * self.block_bytes / self._bytes_per_s

    def rebuild_s(self, tokens: int, host_blocks: Sequence[int]) -> tuple[float, float]:
        """Seconds to fetch inputs of attention, and to rebuild K and V of them."""
        return self.copy_s(host_blocks, "in")[0], PASS_S + tokens * TOKEN_S

    def save_s(self, tokens: int, runs: int) -> tuple[float, float]:
        """Seconds to save inputs of attention."""
        return 0.0, tokens / self.block_size * self.block_bytes / self._bytes_per_s
