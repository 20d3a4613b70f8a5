"""Costs on a virtual device: the times of passes and copies on its clock."""

from collections.abc import Iterable, Sequence
from typing import Protocol


class Costs(Protocol):
    """Seconds of the passes and copies of one experiment.

    Blocks have `block_bytes` of K and V. The host waits for copies to `pageable` memory. Where the
    `host_copies` by itself, it does so between passes.
    """

    block_size: int
    block_bytes: int
    pageable: bool

    @property
    def host_copies(self) -> bool:
        """Whether the host copies by itself, between passes, because no device does."""

    @property
    def between_passes_s(self) -> float:
        """The host's time between two passes."""

    def pass_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a pass of requests, each with its tokens and those in the cache before."""

    def copy_s(self, host_blocks: Sequence[int], direction: str) -> tuple[float, float]:
        """Seconds to copy to or from these blocks of the host pool: on the device, and issued."""

    def offloading_s(self, blocks: int, direction: str) -> float:
        """Seconds of a job of vLLM's offloading."""

    def rebuild_s(self, tokens: int, host_blocks: Sequence[int]) -> tuple[float, float]:
        """Seconds to fetch inputs of attention from these host blocks, and to rebuild K and V."""

    def save_s(self, tokens: int, runs: int) -> tuple[float, float]:
        """Seconds to save inputs of attention: on the device, and on its link to the host."""
