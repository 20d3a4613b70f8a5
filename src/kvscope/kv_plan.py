"""The plan of a KV cache: its groups, and what a request holds of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.arraytypes import Ints
from kvscope.kv_kinds import keep_all_together, kind_of


@dataclass(frozen=True)
class KvGroup:
    """Layers that share a block table. Bytes are of one block, over the group's layers.

    `useful_bytes` are of contents, `padded_bytes` of contents and padding; `block_bytes` is what a
    block takes of the pool, the same for all groups. `kind` is vLLM's name of what is kept
    (`kvscope.kv_kinds`).
    `window_tokens` is the window or the chunk that attention is limited to. A group with `state`
    keeps one state a request instead of K and V of each token.
    """

    kind: str
    layers: int
    block_tokens: int
    useful_bytes: int
    padded_bytes: int
    block_bytes: int
    window_tokens: int | None = None

    @property
    def state(self) -> bool:
        """Whether it keeps one state a request."""
        return kind_of(self.kind).keeps_state

    def held_blocks(self, context_tokens: Ints, tokens: Ints) -> Ints:
        """Blocks of a request in a pass that has room for `tokens` tokens of it.

        `context_tokens` of them were computed before: vLLM frees the blocks that none of the others
        attends to (`get_num_skipped_tokens` of its `SingleTypeKVCacheManager`).
        """
        kind, window = kind_of(self.kind), self.window_tokens or 0
        return kind.held_blocks(context_tokens, tokens, self.block_tokens, window)


def has_one_block_table(groups: Sequence[KvGroup]) -> bool:
    """Whether one group keeps all tokens, so that a request's blocks follow from its tokens."""
    return keep_all_together(group.kind for group in groups)


def unless_one_block_table(groups: Sequence[KvGroup], setting: str) -> str:
    """Why a setting that needs one group that keeps all tokens is refused; '' if it is not."""
    if has_one_block_table(groups):
        return ""
    kinds = ", ".join(group.kind for group in groups)
    return (
        f"{setting} needs a model with one KV group that keeps all tokens, but the groups of this "
        f"model are {kinds}; use another model, or overflow=recompute without prefix caching and "
        "tracing"
    )


def unless_movable(groups: Sequence[KvGroup], setting: str) -> str:
    """Why a setting that moves the blocks of all groups is refused; '' if it is not."""
    if not any(group.state for group in groups) and len({g.block_tokens for g in groups}) == 1:
        return ""
    kinds = ", ".join(g.kind if g.state else f"{g.kind} of {g.block_tokens} tokens" for g in groups)
    return (
        f"{setting} needs KV groups of tokens, with as many in a block, but those of this model "
        f"are {kinds}; use another model, or overflow=recompute"
    )


def layers_apart(groups: Sequence[KvGroup]) -> int:
    """Layers whose blocks have memory of their own: layers of different groups share it."""
    return max(group.layers for group in groups)
