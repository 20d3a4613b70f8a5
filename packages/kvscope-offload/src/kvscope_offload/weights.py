"""Weights of a model, one flat buffer a layer: seeded and random, or those of a transformers model.

A flat buffer is what crosses the link; the tensors of a layer are views of it.
"""

import zlib
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from kvscope_offload.architecture import Architecture, Tensors
from kvscope_offload.host_memory import host_tensor

Source = Callable[[str, tuple[int, ...]], torch.Tensor]
"""Weight by its name (layer number first) and shape."""

# As of kvscope's weights under vLLM (engine.vllm.weights): attention is peaky and strong,
# embeddings are weak, so that the next token depends on the whole context.
GAINS = {"query": 1.5, "key_value": 1.5, "output": 4.0}
EMBEDDING_DEVIATION = 0.2
ALIGNMENT = 64  # elements: views begin where kernels like them to


class Weights:
    """All weights: those outside of the layers on the device, the layers' flat, where asked for."""

    def __init__(self, arch: Architecture, source: Source, resident: bool) -> None:
        self.shapes = arch.layer_shapes()
        self.elements = sum(_padded(prod(shape)) for shape in self.shapes.values())
        self.outer: Tensors = {
            name: source(name, shape).to(arch.device, arch.dtype)
            for name, shape in arch.outer_shapes().items()
        }
        self.outer.setdefault("head", self.outer["embedding"])
        on_gpu = arch.device.type == "cuda"
        self.layers: list[torch.Tensor] = []
        for layer in range(arch.model.layers):
            if resident:
                flat = torch.zeros(self.elements, dtype=arch.dtype, device=arch.device)
            else:
                flat = host_tensor((self.elements,), arch.dtype, pinned=on_gpu)
            for name, view in self.views(flat).items():
                view.copy_(source(f"{layer}.{name}", tuple(view.shape)))
            self.layers.append(flat)

    def views(self, flat: torch.Tensor) -> Tensors:
        """The weights of a layer in its flat buffer, by name."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            views[name] = flat[start : start + prod(shape)].view(shape)
            start += _padded(prod(shape))
        return views


def _padded(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT


def seeded(seed: int, device: torch.device, dtype: torch.dtype) -> Source:
    """Random weights that depend on the seed and their name, drawn on the device."""

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        kind = name.split(".")[-1]
        if "norm" in kind and not kind.endswith("bias"):
            return torch.ones(shape, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        drawn = torch.empty(shape, dtype=dtype, device=device)
        return drawn.normal_(0.0, _deviation(kind, shape), generator=generator)

    return draw


def _deviation(kind: str, shape: tuple[int, ...]) -> float:
    if kind.endswith("bias"):
        return 0.02
    if kind in ("embedding", "positions"):
        return EMBEDDING_DEVIATION
    return float(GAINS.get(kind, 1.0) / shape[-1] ** 0.5)


def of_transformers(model: Any) -> Source:
    """The weights of transformers' OPTForCausalLM or LlamaForCausalLM."""
    state: Tensors = dict(model.state_dict())
    opt = "model.decoder.embed_tokens.weight" in state
    root = "model.decoder" if opt else "model"
    outer = {
        "embedding": ("embed_tokens",),
        "positions": ("embed_positions",),
        "norm": ("final_layer_norm" if opt else "norm",),
    }
    layer = {
        "query": ("self_attn.q_proj",),
        "key_value": ("self_attn.k_proj", "self_attn.v_proj"),
        "output": ("self_attn.out_proj" if opt else "self_attn.o_proj",),
        "attention_norm": ("self_attn_layer_norm" if opt else "input_layernorm",),
        "mlp_norm": ("final_layer_norm" if opt else "post_attention_layernorm",),
        "up": ("fc1",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("fc2" if opt else "mlp.down_proj",),
    }

    def take(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        number, _, short = name.rpartition(".")
        short, suffix = short.removesuffix("_bias"), "bias" if short.endswith("_bias") else "weight"
        if number:
            names = [f"{root}.layers.{number}.{part}.{suffix}" for part in layer[short]]
        elif short == "head":
            names = ["lm_head.weight"]
        else:
            names = [f"{root}.{part}.{suffix}" for part in outer[short]]
        return torch.cat([state[each] for each in names]).view(shape)

    return take
