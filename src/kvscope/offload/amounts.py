"""What a mini-batch takes of link and device in one layer of a pass."""

from collections.abc import Mapping

from kvscope.offload.blocks import Content, Kind, Minibatch, Place
from kvscope.offload.cost import CostModel, Sizes
from kvscope.offload.minibatches import Effort


def loaded_bytes(sizes: Sizes, minibatch: Minibatch) -> int:
    """Bytes of one layer that a mini-batch's context takes over the link in one pass."""
    return _host_bytes(sizes, minibatch.kept)


def stored_bytes(sizes: Sizes, minibatch: Minibatch) -> int:
    """Bytes of one layer that a mini-batch's new tokens take over the way back in one pass."""
    return _host_bytes(sizes, minibatch.stored)


def _host_bytes(sizes: Sizes, kept: Mapping[Kind, int]) -> int:
    contents = (Content.KV, Content.ACTIVATION)
    return sum(kept[Kind(c, Place.HOST)] * width_bytes(sizes, c) for c in contents)


def compute_s(cost: CostModel, minibatch: Minibatch) -> float:
    """Seconds that the device computes for a mini-batch in one layer."""
    return (
        cost.rebuild(minibatch.rebuilt_tokens)
        + cost.recompute(minibatch.id_tokens)
        + cost.forward(minibatch.new_tokens)
        + cost.attend(minibatch.context_tokens)
        + cost.causal(minibatch.causal_pairs)
    )


def effort(cost: CostModel, minibatch: Minibatch) -> Effort:
    """What a mini-batch takes of link and device in one layer of a step."""
    return Effort(cost.link(loaded_bytes(cost.sizes, minibatch)), compute_s(cost, minibatch))


def width_bytes(sizes: Sizes, content: Content) -> int:
    """Bytes of one token in one layer, kept as this content."""
    return {
        Content.KV: sizes.kv_bytes,
        Content.ACTIVATION: sizes.activation_bytes,
        Content.TOKEN: 0,
    }[content]
