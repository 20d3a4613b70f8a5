"""Batches to attend to, and the events that the contract demands of each."""

from collections import Counter
from dataclasses import dataclass

from kvscope_kernels.kv_events import K_READ, K_WRITE, RECORD_ALL_HEADS, V_READ, V_WRITE
from kvscope_kernels.planning import tile_tokens

LAYER = 3


@dataclass(frozen=True)
class Case:
    """A batch: cached and new tokens of each request, and the settings of the model."""

    context: tuple[int, ...]
    queries: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 4
    head_size: int = 32
    block_size: int = 16
    dtype: str = "float32"
    heads_first: bool = False  # the cache's memory: heads before the slots of a block, or after
    processors: int = 1  # of the GPU: many make it split sequences
    head_stride: int = 1
    capacity: int = 100_000  # events

    @property
    def tile(self) -> int:
        return tile_tokens(self.heads // self.kv_heads, 4 if self.dtype == "float32" else 2)

    def writes(self) -> Counter:
        """(kind, row, KV head, block position, offset, tokens) of each write that is due."""
        expected: Counter = Counter()
        for row, (before, new) in enumerate(zip(self.context, self.queries, strict=True)):
            for position in range(before + new):
                start, end = position * self.block_size, (position + 1) * self.block_size
                first, last = max(start, before), min(end, before + new)
                if first < last:
                    for kind in (K_WRITE, V_WRITE):
                        expected[
                            kind, row, RECORD_ALL_HEADS, position, first - start, last - first
                        ] += 1
        return expected

    def reads(self) -> Counter:
        """Expected reads, in the form of `writes`: a read for each tile of queries that reaches
        the block."""
        expected: Counter = Counter()
        for row, (before, new) in enumerate(zip(self.context, self.queries, strict=True)):
            for tile in range(0, new, self.tile):
                end = before + min(tile + self.tile, new)
                for position in range(-(-end // self.block_size)):
                    tokens = min(self.block_size, end - position * self.block_size)
                    for kind in (K_READ, V_READ):
                        for head in range(0, self.kv_heads, self.head_stride):
                            expected[kind, row, head, position, 0, tokens] += 1
        return expected


CASES = {
    "decode, MHA": Case((40, 17, 0), (1, 1, 1)),
    "decode, GQA, split": Case(
        (200, 3, 90), (1, 1, 1), heads=8, kv_heads=2, block_size=8, processors=64
    ),
    "decode, MQA, float16, heads first": Case(
        (33, 31), (1, 1), heads=5, kv_heads=1, dtype="float16", heads_first=True
    ),
    "prefill, MHA, blocks of 32": Case((0, 0), (70, 5), block_size=32),
    "chunks, GQA, odd sizes": Case(
        (0, 50, 13), (30, 21, 1), heads=6, kv_heads=2, head_size=24, block_size=12
    ),
    "mixed, GQA, float16, split, heads first": Case(
        *((0, 130, 47, 300), (40, 1, 18, 1), 8, 2, 16, 16),
        dtype="float16",
        heads_first=True,
        processors=64,
    ),
    "mixed, every other head": Case((60, 20), (1, 20), heads=5, kv_heads=5, head_stride=2),
}


@dataclass(frozen=True)
class Variant:
    """A compiled variant of a kernel, with the sizes of a model."""

    kernel: str  # 'decode', 'split', 'prefill', 'write one' or 'write many'
    instrument: bool = True
    capability: int = 90
    dtype: str = "fp16"
    group: int = 1
    kv_heads: int = 32
    head_size: int = 128
    block_size: int = 16

    def __str__(self) -> str:
        sizes = f"{self.group}x{self.head_size}x{self.block_size}"
        recorded = "on" if self.instrument else "off"
        return f"{self.kernel}-{recorded}-sm{self.capability}-{self.dtype}-{sizes}"
