"""Kinds of KV groups: the state that their layers keep of a request, and its number of blocks.

A kind is an entry point in the group `kvscope.kv_group`, by its name in `model.kv_layers`. Other
packages add theirs in the same way: docs/EXTENDING.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from kvscope.base import plugins
from kvscope.base.arraytypes import Ints

GROUP = "kvscope.kv_group"

Count = TypeVar("Count", int, Ints)
"""A number of tokens or blocks, or an array of them."""


@dataclass(frozen=True)
class KvKind:
    """A kind whose layers keep K and V, or a latent, of all tokens.

    `vllm_name` is vLLM's name of what is kept: the class of its `KVCacheSpec` without `Spec`.
    `contents` says in a legend what the blocks hold.
    """

    vllm_name: str
    contents: str = "of all tokens"

    keeps_all = True
    """Whether a request's blocks are those of its tokens."""
    keeps_state = False
    """Whether it keeps one state per request instead of a content for each token."""
    window = ""
    """The attribute of vLLM's spec with the tokens that attention is limited to; '' without."""

    def skipped_tokens(self, context_tokens: Count, window_tokens: int) -> Count:
        """The number of first tokens, of `context_tokens`, that no later token attends to.

        vLLM frees their blocks (`get_num_skipped_tokens` of a `SingleTypeKVCacheManager`).
        """
        return context_tokens * 0

    def held_blocks(
        self, context_tokens: Count, tokens: Count, block_tokens: int, window_tokens: int
    ) -> Count:
        """Blocks of a request in a pass that has room for `tokens` tokens of it.

        `context_tokens` of them were computed before. `window_tokens` is 0 where there is no
        window, or it is not known.
        """
        skipped = self.skipped_tokens(context_tokens, window_tokens) if window_tokens else 0
        blocks: Count = -(-tokens // block_tokens) - skipped // block_tokens
        return blocks

    def admitted_blocks(
        self, longest_tokens: int, pass_tokens: int, block_tokens: int, window_tokens: int
    ) -> int:
        """Blocks with which vLLM takes a request of `longest_tokens` tokens.

        A pass computes at most `pass_tokens` of them (vLLM's `max_admission_blocks_per_request`).
        """
        return -(-longest_tokens // block_tokens)


@dataclass(frozen=True)
class Window(KvKind):
    """Tokens attend to the last `window_tokens` tokens, themselves included."""

    contents: str = "of a window"
    keeps_all = False
    window = "sliding_window"

    def skipped_tokens(self, context_tokens: Count, window_tokens: int) -> Count:
        """Tokens before the next token's window."""
        before: Count = context_tokens - window_tokens + 1
        return before * (before > 0)

    def admitted_blocks(
        self, longest_tokens: int, pass_tokens: int, block_tokens: int, window_tokens: int
    ) -> int:
        """A window, which may begin within a block, and what a pass computes besides."""
        tokens = min(longest_tokens, window_tokens - 1 + pass_tokens)
        return -(-tokens // block_tokens) + 1


@dataclass(frozen=True)
class Chunk(KvKind):
    """Tokens attend to those before them in their chunk of `window_tokens` tokens."""

    contents: str = "of a chunk"
    keeps_all = False
    window = "attention_chunk_size"

    def skipped_tokens(self, context_tokens: Count, window_tokens: int) -> Count:
        """Tokens before the next token's chunk."""
        return context_tokens // window_tokens * window_tokens

    def admitted_blocks(
        self, longest_tokens: int, pass_tokens: int, block_tokens: int, window_tokens: int
    ) -> int:
        """A chunk and what a pass computes besides."""
        return -(-min(longest_tokens, window_tokens + pass_tokens) // block_tokens)


@dataclass(frozen=True)
class State(KvKind):
    """A state, which takes one block whatever the request's length."""

    contents: str = "states"
    keeps_all = False
    keeps_state = True

    def held_blocks(
        self, context_tokens: Count, tokens: Count, block_tokens: int, window_tokens: int
    ) -> Count:
        """Number of blocks, always one."""
        return tokens * 0 + 1

    def admitted_blocks(
        self, longest_tokens: int, pass_tokens: int, block_tokens: int, window_tokens: int
    ) -> int:
        """Number of blocks, always one."""
        return 1


FULL = KvKind("FullAttention")
MLA = KvKind("MLAAttention")
SLIDING_WINDOW = Window("SlidingWindow")
SLIDING_WINDOW_MLA = Window("SlidingWindowMLA")
CHUNKED_LOCAL = Chunk("ChunkedLocalAttention")
MAMBA = State("Mamba")


@cache
def registered() -> dict[str, KvKind]:
    """All kinds by their names in `model.kv_layers`; BadInput as for `plugins.load`."""
    return {name: plugins.load(GROUP, name, KvKind) for name in plugins.names(GROUP)}


@cache
def by_vllm_name() -> dict[str, KvKind]:
    """All kinds by vLLM's names; BadInput as for `plugins.load`."""
    return {kind.vllm_name: kind for kind in registered().values()}


def kind_of(vllm_name: str) -> KvKind:
    """The kind of vLLM's name; without a package's kind, the kind that keeps all tokens."""
    return by_vllm_name().get(vllm_name) or KvKind(vllm_name)


def all_known(vllm_names: Iterable[str]) -> bool:
    """Whether the number of blocks that a request holds is known for all kinds."""
    return {*vllm_names} <= by_vllm_name().keys()


def keep_all_together(vllm_names: Iterable[str]) -> bool:
    """Whether there is one group, and it keeps all tokens: its blocks follow from tokens."""
    names = list(vllm_names)
    return len(names) == 1 and all_known(names) and kind_of(names[0]).keeps_all
