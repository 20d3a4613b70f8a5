"""A KV group: layers that share a block table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KvGroup:
    """Layers that share a block table. Bytes are of one block, over the group's layers.

    `useful_bytes` are of contents, `padded_bytes` of contents and padding; `block_bytes` is what a
    block takes of the pool, the same for all groups. `kind` is vLLM's name of what is kept
    (`kvscope.tables.kv_kinds`).
    `window_tokens` is the window or the chunk that attention is limited to.
    """

    kind: str
    layers: int
    block_tokens: int
    useful_bytes: int
    padded_bytes: int
    block_bytes: int
    window_tokens: int | None = None
