"""OPT and Llama as functions of tensors: one decoder layer in the steps that offloading needs.

A layer's K and V are one product of the input of attention, `keys_values`: rebuilding them from a
stored activation is that product again, with biases and rotary positions.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch.nn import functional

from kvscope.api.models import Model

Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]

POSITION_OFFSET = 2  # rows of OPT's table of positions before that of the first (padding)
MOST_ROWS = 8192  # of a product in the MLP, whose inner rows are several times as wide


class Architecture(ABC):
    """The functions that both families share; rows are tokens.

    With `tile`, every product is done in tiles of so many rows, the last one padded: then a row's
    result does not depend on how many others it is computed with, to the last bit.
    """

    def __init__(self, model: Model, device: torch.device, tile: int | None = None) -> None:
        self.model, self.device, self.tile = model, device, tile
        self.kv_width = model.kv_heads * model.head_size
        self.dtype: torch.dtype = getattr(torch, model.dtype)

    @abstractmethod
    def layer_shapes(self) -> Shapes:
        """The weights of one layer: [out, in] of products, [width] of norms and biases."""

    @abstractmethod
    def outer_shapes(self) -> Shapes:
        """The weights outside of the layers."""

    @abstractmethod
    def embed(self, outer: Tensors, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Token ids [n] at positions [n] to hidden states [n, hidden]."""

    def attention_input(self, w: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states to the input of attention, the activation: [n, hidden] to [n, hidden]."""
        return self._norm(hidden, w, "attention_norm")

    def query(self, w: Tensors, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Activations to queries, [n, heads * head_size]."""
        return self._rotate(self._linear(x, w, "query"), positions)

    def keys_values(self, w: Tensors, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Activations to K beside V, [n, 2 * kv_heads * head_size]."""
        both = self._linear(x, w, "key_value")
        return torch.cat(
            (self._rotate(both[:, : self.kv_width], positions), both[:, self.kv_width :]), dim=1
        )

    def finish(self, w: Tensors, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of the layer: output projection and MLP, each with its residual."""
        hidden = hidden + self._linear(attended, w, "output")
        normed = self._norm(hidden, w, "mlp_norm")
        parts = [self._mlp(w, rows) for rows in normed.split(MOST_ROWS)]
        return hidden + torch.cat(parts)

    def logits(self, outer: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states to logits, [n, vocabulary]."""
        return self._linear(self._norm(hidden, outer, "norm"), outer, "head")

    @abstractmethod
    def _norm(self, x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor: ...

    @abstractmethod
    def _mlp(self, w: Tensors, x: torch.Tensor) -> torch.Tensor: ...

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return x

    def _linear(self, x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor:
        weight, bias = w[name], w.get(f"{name}_bias")
        if self.tile is None:
            return functional.linear(x, weight, bias)
        padding = x.new_zeros(-len(x) % self.tile, x.shape[1])
        tiles = torch.cat((x, padding)).split(self.tile)
        return torch.cat([functional.linear(tile, weight, bias) for tile in tiles])[: len(x)]

    def _projections(self) -> Shapes:
        hidden = self.model.hidden_size
        return {
            "query": (hidden, hidden),
            "key_value": (2 * self.kv_width, hidden),
            "output": (hidden, hidden),
        }


class Opt(Architecture):
    """LayerNorm, learned positions, ReLU, biases everywhere."""

    def layer_shapes(self) -> Shapes:
        """Products with their biases, and two norms."""
        hidden, inner = self.model.hidden_size, self.model.intermediate_size
        products = self._projections() | {"up": (inner, hidden), "down": (hidden, inner)}
        norms = {"attention_norm": (hidden,), "mlp_norm": (hidden,)}
        weights = products | norms
        return weights | {f"{name}_bias": (shape[0],) for name, shape in weights.items()}

    def outer_shapes(self) -> Shapes:
        """Token and position embeddings, the last norm; the output layer is the embedding."""
        model = self.model
        positions = model.max_position_embeddings + POSITION_OFFSET
        shapes: Shapes = {
            "embedding": (model.vocab_size, model.hidden_size),
            "positions": (positions, model.hidden_size),
            "norm": (model.hidden_size,),
            "norm_bias": (model.hidden_size,),
        }
        return shapes | ({} if model.tie_word_embeddings else {"head": shapes["embedding"]})

    def embed(self, outer: Tensors, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The sum of both embeddings."""
        return outer["embedding"][ids] + outer["positions"][positions + POSITION_OFFSET]

    def _norm(self, x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], w[name], w[f"{name}_bias"])

    def _mlp(self, w: Tensors, x: torch.Tensor) -> torch.Tensor:
        return self._linear(functional.relu(self._linear(x, w, "up")), w, "down")


class Llama(Architecture):
    """RMSNorm, rotary positions, gated MLP, no biases."""

    def __init__(self, model: Model, device: torch.device, tile: int | None = None) -> None:
        super().__init__(model, device, tile)
        self._frequencies, self._scale = _rotary(model, device)

    def layer_shapes(self) -> Shapes:
        """Shapes of the products, gate and up merged, and of two norms."""
        hidden, inner = self.model.hidden_size, self.model.intermediate_size
        products = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        norms = {"attention_norm": (hidden,), "mlp_norm": (hidden,)}
        return self._projections() | products | norms

    def outer_shapes(self) -> Shapes:
        """The embedding, the last norm, and the output layer if it is not the embedding."""
        model = self.model
        shapes: Shapes = {
            "embedding": (model.vocab_size, model.hidden_size),
            "norm": (model.hidden_size,),
        }
        return shapes | ({} if model.tie_word_embeddings else {"head": shapes["embedding"]})

    def embed(self, outer: Tensors, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The embedding; positions enter with attention."""
        return outer["embedding"][ids]

    def _norm(self, x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return w[name] * wide.to(x.dtype)

    def _mlp(self, w: Tensors, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._linear(x, w, "gate_up").chunk(2, dim=1)
        return self._linear(functional.silu(gate) * up, w, "down")

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=1)[:, None]
        cos, sin = ((f * self._scale).to(x.dtype) for f in (angles.cos(), angles.sin()))
        heads = x.view(len(x), -1, self.model.head_size)
        first, second = heads.chunk(2, dim=2)
        turned = heads * cos + torch.cat((-second, first), dim=2) * sin
        return turned.reshape(x.shape)


def _rotary(model: Model, device: torch.device) -> tuple[torch.Tensor, float]:
    """transformers' rotary frequencies [head_size / 2] and scale, whatever the model's scaling."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = model.hf_config()
    config.pop("architectures")
    rotary: Any = LlamaRotaryEmbedding(LlamaConfig(**config))
    return rotary.inv_freq.to(device), float(rotary.attention_scaling)


def architecture(model: Model, device: torch.device, tile: int | None = None) -> Architecture:
    """The functions of a model's family."""
    return {"opt": Opt, "llama": Llama}[model.family](model, device, tile)


def attend(
    q: torch.Tensor, kv: torch.Tensor, model: Model, mask: torch.Tensor | None, causal: bool = False
) -> torch.Tensor:
    """Attention of queries [b, n, hidden] to K beside V [b, m, 2 * kv_width]; [b, n, hidden].

    `mask` [b, m] says which of the m tokens there are; None is all.
    """
    b, n, m = q.shape[0], q.shape[1], kv.shape[1]
    heads, size = model.kv_heads, model.head_size
    k, v = kv.view(b, m, 2, heads, size).permute(2, 0, 3, 1, 4)
    attended = functional.scaled_dot_product_attention(
        q.view(b, n, model.attention_heads, size).transpose(1, 2),
        k,
        v,
        attn_mask=None if mask is None else mask[:, None, None, :],
        is_causal=causal,
        enable_gqa=heads != model.attention_heads,
    )
    return attended.transpose(1, 2).reshape(q.shape)
