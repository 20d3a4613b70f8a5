"""Batches for attention, drawn at random, and what a plain reference makes of them."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Shape:
    """A batch: `rows` are (tokens in the cache, new tokens) of each request."""

    rows: list[tuple[int, int]]
    block_size: int
    kv_heads: int
    group: int
    head_size: int
    dtype: torch.dtype = torch.float32
    tile: int = 32
    by_block: bool = False

    @classmethod
    def drawn(cls, seed: int) -> "Shape":
        """Prefill, decode and chunks of lengths, heads and blocks of all kinds."""
        draw = random.Random(seed)
        rows = [
            (draw.choice([0, draw.randint(0, 300)]), draw.choice([1, draw.randint(1, 120)]))
            for _ in range(draw.randint(1, 7))
        ]
        return cls(
            rows=rows,
            block_size=draw.choice([1, 2, 3, 8, 16, 32, 61, 128, 256]),
            kv_heads=draw.choice([1, 2, 3, 8]),
            group=draw.choice([1, 1, 2, 4, 8]),
            head_size=draw.choice([8, 32, 64, 80, 128]),
            dtype=draw.choice([torch.float32, torch.bfloat16]),
            tile=draw.choice([1, 16, 64, 128]),
            by_block=draw.random() < 0.3,
        )


class Case:
    """A batch with its tensors: caches of what came before, and new queries, keys and values."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        self.shape = shape
        torch.manual_seed(seed)
        s, generator = shape, np.random.default_rng(seed)
        self.lengths = np.array([context + new for context, new in s.rows], np.int32)
        needed = [-(-length // s.block_size) for length in self.lengths.tolist()]
        blocks = generator.permutation(sum(needed)) + 1
        self.table = np.zeros((len(s.rows), max(needed) + 1), np.int32)
        for row, (first, count) in enumerate(zip(np.cumsum([0, *needed]), needed, strict=False)):
            self.table[row, :count] = blocks[first : first + count]
        size = (len(blocks) + 1, s.kv_heads, s.block_size, 2 * s.head_size)
        layers = torch.randn(size[0], 2, *size[1:]) if s.by_block else torch.randn(2, *size)
        self.cache = (layers[:, 1] if s.by_block else layers[1]).to(s.dtype).contiguous()
        tokens = sum(new for _, new in s.rows)
        self.query = torch.randn(tokens, s.kv_heads * s.group, s.head_size).to(s.dtype)
        self.key = torch.randn(tokens, s.kv_heads, s.head_size).to(s.dtype)
        self.value = torch.randn(tokens, s.kv_heads, s.head_size).to(s.dtype)
        self.starts = np.cumsum([0, *(new for _, new in s.rows)]).astype(np.int32)

    def fresh_cache(self) -> torch.Tensor:
        """The cache before the pass, in the layout asked for."""
        s = self.shape
        if not s.by_block:
            return self.cache.clone()
        whole = torch.zeros(len(self.cache), 2, *self.cache.shape[1:], dtype=s.dtype)
        whole[:, 1] = self.cache
        return whole[:, 1]

    def reference(self, cache: torch.Tensor) -> torch.Tensor:
        """Attention by PyTorch over each request's gathered blocks, in float32."""
        s, out = self.shape, []
        for row, (context, new) in enumerate(s.rows):
            length = context + new
            blocks = torch.from_numpy(self.table[row, : -(-length // s.block_size)]).long()
            # The layout of the kernels: rows of K, then rows of V.
            kv = cache[blocks].reshape(len(blocks), s.kv_heads, 2, s.block_size, s.head_size)
            k, v = kv.float().permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :length]
            queries = self.query[self.starts[row] : self.starts[row + 1]].float().transpose(0, 1)
            mask = torch.ones(new, length, dtype=torch.bool).tril(context)
            attended = scaled_dot_product_attention(
                queries[None], k[None], v[None], attn_mask=mask, enable_gqa=True
            )
            out.append(attended[0].transpose(0, 1))
        return torch.cat(out)
