"""The blocks that each request held in its last pass, to check that requests keep their blocks.

Memory: four bytes for each block of each request of the current repeat.
"""

import numpy as np
import numpy.typing as npt

from kvscope_kernels.collect.flushes import Flush

Blocks = npt.NDArray[np.int32]
Preempted = dict[tuple[int, str], list[int]]  # steps, by (repeat, request)


class BlockTables:
    """The block tables of a run's requests, flush by flush."""

    def __init__(self, preempted: Preempted) -> None:
        self.preempted = preempted
        self._place = (-1, -1)  # repeat and step of the current pass
        self._of_pass: dict[str, list[int]] = {}
        self._before: dict[str, tuple[int, Blocks]] = {}  # step of the last pass, and blocks in it

    def find_moves(self, flush: Flush) -> list[str] | None:
        """Add a flush; return a description of each request whose blocks changed.

        None if the flush has no block table. Flushes must come in the order of passes.
        """
        if flush.block_table is None:
            return None
        self._begin_pass(flush.repeat, flush.step)
        words = []
        for request, blocks in zip(flush.requests, flush.block_table, strict=True):
            if request in self._of_pass:
                if self._of_pass[request] != blocks:
                    words.append(f"request {request} has other blocks than in another layer")
                continue
            self._of_pass[request] = blocks
            step, blocks_before = self._before.get(request, (flush.step, None))
            if blocks_before is None or self._was_preempted(request, *sorted((step, flush.step))):
                continue
            if not np.array_equal(np.array(blocks[: len(blocks_before)], np.int32), blocks_before):
                words.append(f"request {request} has other blocks than in step {step}")
        return words

    def _begin_pass(self, repeat: int, step: int) -> None:
        if (repeat, step) == self._place:
            return
        if repeat == self._place[0]:
            for request, blocks in self._of_pass.items():
                self._before[request] = (self._place[1], np.array(blocks, np.int32))
        else:
            self._before = {}
        self._place, self._of_pass = (repeat, step), {}

    def _was_preempted(self, request: str, after: int, until: int) -> bool:
        """True if a request was preempted after one step and until another."""
        lost = self.preempted.get((self._place[0], request), ())
        return any(after < step <= until for step in lost)
