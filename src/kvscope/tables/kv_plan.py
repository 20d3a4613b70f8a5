"""The plan of a KV cache: its groups, and the blocks that a request holds of them."""

from collections.abc import Sequence

from kvscope.base.arraytypes import Ints
from kvscope.tables.kv_group import KvGroup as KvGroup
from kvscope.tables.kv_kinds import keep_all_together, kind_of


def keeps_state(group: KvGroup) -> bool:
    """Whether a group keeps one state a request instead of K and V of each token."""
    return kind_of(group.kind).keeps_state


def held_blocks(group: KvGroup, context_tokens: Ints, tokens: Ints) -> Ints:
    """Blocks of a request in a pass that has room for `tokens` tokens of it.

    `context_tokens` of them were computed before: vLLM frees the blocks that none of the others
    attends to (`get_num_skipped_tokens` of its `SingleTypeKVCacheManager`).
    """
    kind, window = kind_of(group.kind), group.window_tokens or 0
    return kind.held_blocks(context_tokens, tokens, group.block_tokens, window)


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
    sizes = {group.block_tokens for group in groups}
    if not any(map(keeps_state, groups)) and len(sizes) == 1:
        return ""
    kinds = ", ".join(
        g.kind if keeps_state(g) else f"{g.kind} of {g.block_tokens} tokens" for g in groups
    )
    return (
        f"{setting} needs KV groups of tokens, with as many in a block, but those of this model "
        f"are {kinds}; use another model, or overflow=recompute"
    )


def layers_apart(groups: Sequence[KvGroup]) -> int:
    """Layers whose blocks have memory of their own: layers of different groups share it."""
    return max(group.layers for group in groups)
