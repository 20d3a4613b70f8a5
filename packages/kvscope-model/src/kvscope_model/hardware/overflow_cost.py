"""Seconds of what happens to a preempted request's blocks. docs/MODEL.md has the formulas."""

from typing import TYPE_CHECKING

from kvscope.api.tables import rebuilds
from kvscope_model.hardware.cost import PassCost, copies_in, copy_s

if TYPE_CHECKING:
    from kvscope.api.settings import Conditions

# Of the some ten kernels of a layer, those that rebuild K and V: one copy, the product, the rotary
# embedding, the write to the cache.
REBUILD_LAUNCHES = 0.4


class OverflowCost:
    """Seconds to copy a victim's blocks, or to fetch its activations and rebuild K and V.

    A block has `block_size` tokens and its K and V lie in `pieces`; the host pool's `memory` is
    'pinned' or 'pageable', copies are `coalesced` or per block. Tokens are computed again
    `chunk_tokens` at a time, or all at once, in passes of their own or in those of other requests.
    """

    def __init__(
        self,
        passes: PassCost,
        block_size: int,
        pieces: int,
        memory: str,
        coalesced: bool,
        chunk_tokens: int | None = None,
        shares_passes: bool = False,
    ) -> None:
        self.passes, self.hardware, self.model = passes, passes.hardware, passes.model
        self.block_size, self.pieces = block_size, pieces
        self.memory, self.coalesced = memory, coalesced
        self.chunk_tokens, self.shares_passes = chunk_tokens, shares_passes
        self.block_bytes = block_size * self.model.block_elements * passes.kv_width
        self.activation_block_bytes = block_size * self.model.activation_bytes_per_token

    @classmethod
    def of(cls, experiment: "Conditions", passes: PassCost) -> "OverflowCost":
        """Costs of an experiment whose passes cost `passes`."""
        model, cache, batching = experiment.model, experiment.cache, experiment.batching
        overflow = experiment.overflow
        return cls(
            passes,
            cache.block_size,
            cache.pieces(model.layers_apart),
            memory=str(getattr(overflow, "host_memory", "pinned")),
            coalesced=getattr(overflow, "copies", "") == "coalesced",
            chunk_tokens=batching.pass_tokens,
            shares_passes=batching.name != "prefill_first",
        )

    def recompute_s(self, tokens: int, beside: int, together: int = 1) -> float:
        """Seconds of the passes that compute a victim's tokens again, with its newest one.

        Passes that it shares with the requests `beside` it, which decode, would have read the
        weights anyway. But of all of these passes but the last it gives no token: its part of their
        time is lost. Passes of their own come on top, with the host's time between passes, and so
        many requests are computed `together` in them.
        """
        total, most, spent_s = tokens + 1, self.chunk_tokens or tokens + 1, 0.0
        shared = 1 if self.shares_passes else together
        starts = range(0, total, most)
        for before in starts:
            chunk = (min(most, total - before), before)
            spent_s += self.passes.pass_s([chunk] * shared, 0, 0, 0) / shared
        if not self.shares_passes:
            return spent_s + len(starts) * self.hardware.between_passes_s / together
        decoding_s = self.passes.pass_s([], 1, 1, 1)
        added_s = max(0.0, spent_s - len(starts) * decoding_s)
        return added_s + (len(starts) - 1) * decoding_s / (beside + 1)

    def swap_s(self, blocks: int, runs: int, direction: str) -> tuple[float, float]:
        """Seconds to copy K and V of blocks in `runs` host stretches: on the device, and issued."""
        return self._copy_s(blocks, runs, self.pieces, self.block_bytes, direction)

    def offloading_s(self, blocks: int, direction: str) -> float:
        """Seconds of a job of vLLM's offloading: a copy per block and layer, ordered in one call.

        It lays K and V of a layer out in one piece, and pins the host's memory.
        """
        copies, moved = blocks * self.model.layers, blocks * self.block_bytes
        return copy_s(self.hardware, copies, moved / copies, "pinned", direction)[0]

    def fetch_s(self, blocks: int, runs: int) -> tuple[float, float]:
        """Seconds to copy the activations of blocks to the device; a block's lie in one piece."""
        return self._copy_s(blocks, runs, 1, self.activation_block_bytes, "in")

    def save_s(self, tokens: int, runs: int) -> tuple[float, float]:
        """`copy_s` of the activations of tokens to the host, in so many copies."""
        token_bytes = self.model.activation_bytes_per_token
        return copy_s(self.hardware, runs, tokens * token_bytes / runs, self.memory, "out")

    def write_through_s(self, tokens: int, most: int) -> float:
        """Added seconds of the passes that save a request's tokens: some at once, then singly.

        Copies to pageable memory are waited for, others run behind the next pass.
        """
        spent_s = self.gather_s(most)
        if self.memory == "pageable" or self.passes.is_cpu:
            spent_s += self.save_s(tokens, 1)[0] + (most - tokens) * self.save_s(1, 1)[0]
        return spent_s

    def gather_s(self, tokens: int) -> float:
        """Seconds to gather the activations of tokens on the device, layer by layer."""
        return self._touch_s(2 * tokens * self.model.activation_bytes_per_token)

    def rebuild_s(self, tokens: int) -> float:
        """Seconds to make K and V of the activations of tokens, layer by layer.

        Activations are read and written once more to lay them out, Q, K and V once each.
        """
        model, hardware, total_s = self.model, self.hardware, 0.0
        width = model.number_bytes
        outputs = model.head_size * (model.attention_heads + 2 * model.kv_heads)
        for first, last in rebuilds.rebuild_parts(tokens):
            count = last - first
            product_s = self.passes.gemm_s(count, outputs, model.hidden_size)
            busy_s = product_s + self._touch_s(2 * count * width * (model.hidden_size + outputs))
            launches_s = REBUILD_LAUNCHES * hardware.layer_launch_s
            layer_s = busy_s + launches_s if self.passes.is_cpu else max(busy_s, launches_s)
            total_s += model.layers * layer_s
        return total_s

    def _copy_s(
        self, blocks: int, runs: int, pieces: int, block_bytes: int, direction: str
    ) -> tuple[float, float]:
        copies = (runs if self.coalesced else blocks) * pieces
        return self.copied_s(copies, blocks * block_bytes, direction)

    def copied_s(self, copies: int, moved_bytes: int, direction: str) -> tuple[float, float]:
        """Seconds for the bytes of blocks in so many equal copies: on the device, and issued."""
        piece_bytes = moved_bytes / copies
        device_s, issue_s = copy_s(self.hardware, copies, piece_bytes, self.memory, direction)
        return device_s + self._scatter_s(moved_bytes), issue_s

    def copies_in(self, device_s: float, moved_bytes: int, direction: str) -> int:
        """Number of copies that took so many seconds on the device, the inverse of `copied_s`."""
        link_s = device_s - self._scatter_s(moved_bytes)
        return copies_in(self.hardware, link_s, moved_bytes, self.memory, direction)

    def _scatter_s(self, moved_bytes: int) -> float:
        """Seconds to gather or scatter the cache's blocks: each byte is read and written once.

        A CPU gathers them as it copies.
        """
        apart = self.coalesced and not self.passes.is_cpu
        return self._touch_s(2 * moved_bytes) if apart else 0.0

    def _touch_s(self, moved_bytes: float) -> float:
        """Seconds to read or write bytes of the device's memory."""
        return moved_bytes / (self.hardware.memory_bytes_per_s * self.hardware.read_share)
