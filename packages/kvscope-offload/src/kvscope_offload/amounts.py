"""Use of link and device by a mini-batch, or one request of it, in one layer of a pass."""

from collections.abc import Mapping

from kvscope_offload.blocks import KINDS, Content, Kind, Minibatch, Place, Row
from kvscope_offload.cost import CostModel, Sizes
from kvscope_offload.minibatches import Effort


def loaded_bytes(sizes: Sizes, part: Minibatch | Row) -> int:
    """Bytes of one layer that its context takes over the link in one pass."""
    return _host_bytes(sizes, part.kept)


def stored_bytes(sizes: Sizes, part: Minibatch | Row) -> int:
    """Bytes of one layer that its new tokens take over the way back in one pass."""
    return _host_bytes(sizes, part.stored)


def _host_bytes(sizes: Sizes, kept: Mapping[Kind, int]) -> int:
    contents = (Content.KV, Content.ACTIVATION)
    return sum(kept[Kind(c, Place.HOST)] * width_bytes(sizes, c) for c in contents)


def compute_s(cost: CostModel, part: Minibatch | Row) -> float:
    """Seconds that the device computes for it in one layer."""
    return (
        cost.rebuild(part.rebuilt_tokens)
        + cost.recompute(part.id_tokens)
        + cost.forward(part.new_tokens)
        + cost.attend(part.context_tokens)
        + cost.causal(part.causal_pairs)
    )


def effort(cost: CostModel, part: Minibatch | Row) -> Effort:
    """Use of link and device in one layer of a step."""
    return Effort(cost.link(loaded_bytes(cost.sizes, part)), compute_s(cost, part))


def context_bytes(sizes: Sizes, row: Row, block_size: int) -> int:
    """Bytes of one layer of the blocks of a request's tokens, after a pass has stored its own.

    Blocks of activations have the bytes of activations; of tokens kept as ids there is none. All
    blocks but a request's last are full, so the tokens of a kind say how many blocks it has.
    """
    blocks = {kind: -(-(row.kept[kind] + row.stored[kind]) // block_size) for kind in KINDS}
    widths = {kind: width_bytes(sizes, kind.content) for kind in KINDS}
    return block_size * sum(blocks[kind] * widths[kind] for kind in KINDS)


def width_bytes(sizes: Sizes, content: Content) -> int:
    """Bytes of one token in one layer, kept as this content."""
    return {
        Content.KV: sizes.kv_bytes,
        Content.ACTIVATION: sizes.activation_bytes,
        Content.TOKEN: 0,
    }[content]
