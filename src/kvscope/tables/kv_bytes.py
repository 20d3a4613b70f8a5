"""The KV cache of a server: the contents of its blocks, and the cost of losing a request."""

from dataclasses import dataclass

from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_kinds import kind_of


@dataclass(frozen=True)
class HeldBlocks:
    """The blocks of each group that a request of `tokens` holds, and the most in its prefill."""

    tokens: int
    blocks: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True)
class AttentionLayers:
    """FLOPs of a layer for each pair of a token and a token that it attends to.

    It attends to those within a window, or to those of its chunk, if it is so limited.
    """

    pair_flops: int
    window_tokens: int | None = None
    chunk_tokens: int | None = None

    def flops(self, tokens: int) -> int:
        """FLOPs of so many tokens."""
        chunk = self.chunk_tokens or max(1, tokens)
        whole, rest = divmod(tokens, chunk)
        window = self.window_tokens
        return self.pair_flops * (whole * pairs(chunk, window) + pairs(rest, window))


@dataclass(frozen=True)
class RankPlan:
    """Layers with a KV cache, weights, memory and blocks of a rank of a pipeline stage."""

    layers: int
    weight_bytes: int
    memory_bytes: int
    blocks: int


@dataclass(frozen=True)
class KvPlan:
    """vLLM's plan for one model, memory and platform.

    All groups share one pool of `blocks` blocks; `ranks` has a rank of each pipeline stage, of
    which the one with the fewest blocks decides. `capacity_tokens` and `max_concurrency` are what
    vLLM logs as it starts. `longest` are the blocks of each group that a request of `max_model_len`
    may hold; `held` has an entry for each length that was asked for, None where no such request can
    run. `weights` are the parameters that each token is multiplied with. `refused` is why a server
    with such blocks does not start on this platform.
    """

    model: str
    platform: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    prefix_caching: bool
    kv_cache_dtype: str
    memory_bytes: int
    blocks: int
    capacity_tokens: int
    max_concurrency: float
    ranks: tuple[RankPlan, ...]
    groups: tuple[KvGroup, ...]
    longest: tuple[int, ...]
    held: tuple[HeldBlocks | None, ...]
    weights: int
    attention: tuple[AttentionLayers, ...]
    refused: str | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the pool."""
        return self.groups[0].block_bytes

    def useful_bytes(self, held: HeldBlocks) -> int:
        """Bytes of contents in the blocks that a request holds, without their empty slots."""
        groups = zip(held.blocks, self.groups, strict=True)
        return sum(
            n * group.useful_bytes - _empty_bytes(group, n, held.tokens) for n, group in groups
        )

    def empty_bytes(self, held: HeldBlocks) -> int:
        """Bytes of slots without a token in the last block of each group."""
        groups = zip(held.blocks, self.groups, strict=True)
        return sum(_empty_bytes(group, n, held.tokens) for n, group in groups)

    def padding_bytes(self, held: HeldBlocks) -> int:
        """Bytes of padding in the blocks that a request holds."""
        groups = zip(held.blocks, self.groups, strict=True)
        return sum(blocks * (g.padded_bytes - g.useful_bytes) for blocks, g in groups)

    def reserved_bytes(self, held: HeldBlocks) -> int:
        """Bytes of the pool that the blocks of a request take."""
        return sum(held.blocks) * self.block_bytes

    def requests(self, held: HeldBlocks) -> int:
        """Requests of this length at once, one of them in its prefill; vLLM keeps one block.

        At most `max_num_seqs`.
        """
        room, each, most = self.blocks - 1, max(1, sum(held.blocks)), max(1, sum(held.most))
        fit = 0 if most > room else 1 + (room - most) // each
        return min(fit, self.max_num_seqs)

    def swap_bytes(self, held: HeldBlocks) -> int:
        """Bytes that a swap of a request moves: its contents, out and back."""
        return 2 * self.useful_bytes(held)

    def recompute_flops(self, tokens: int) -> int:
        """FLOPs to compute so many tokens again: weights twice each, and attention to earlier
        tokens."""
        return 2 * self.weights * tokens + sum(layer.flops(tokens) for layer in self.attention)


def _empty_bytes(group: KvGroup, blocks: int, tokens: int) -> int:
    """Bytes of the slots behind the newest token; a state has none."""
    if not blocks or kind_of(group.kind).keeps_state:
        return 0
    return -tokens % group.block_tokens * group.useful_bytes // group.block_tokens


def pairs(tokens: int, window_tokens: int | None = None) -> int:
    """Pairs of a token and a token that it attends to, itself included.

    n (n + 1) / 2 without a window; with one of w tokens, each token has at most w.
    """
    inside = min(tokens, window_tokens or tokens)
    return inside * (inside + 1) // 2 + (tokens - inside) * inside
