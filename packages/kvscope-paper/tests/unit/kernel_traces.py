"""Kernel traces as the artifact's instrumented engine writes them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WARPS, BLOCKS_OF_WARP, BLOCK_SIZE = 4, 20, 16
HEADS, HEAD_SIZE, X = 2, 8, 8
LAYERS, STEPS = 2, 4
BLOCK_BYTES = HEADS * HEAD_SIZE * BLOCK_SIZE * 2


@dataclass
class Artifact:
    """The instrumented engine: what its kernels leave behind; one prefill, then decodes."""

    prompts: list[int]
    v_rule: str = "published"  # or "lossy": the rule of the trace, not of the code
    layers: int = LAYERS
    steps: int = STEPS
    tables: list[list[int]] = field(default_factory=list)
    writes: list[dict[str, Any]] = field(default_factory=list)
    reads: list[dict[str, Any]] = field(default_factory=list)

    def serve(self) -> "Artifact":
        free = list(range(60 * len(self.prompts), 0, -1))
        self.tables = [[] for _ in self.prompts]
        for step in range(1, self.steps + 1):
            spans = [(0, n) if step == 1 else (n + step - 2, 1) for n in self.prompts]
            for table, (context, count) in zip(self.tables, spans, strict=True):
                while len(table) * BLOCK_SIZE < context + count:
                    table.append(free.pop(0))
            for layer in range(self.layers):
                self.write(step, layer, spans)
                if step > 1:
                    self.read(step, layer, spans)
        return self

    def head(self, step: int, layer: int, seq_lens: list[int]) -> dict[str, Any]:
        return {
            "layer_id": layer,
            "step": step,
            "start_time": 1_727_753_296.0 + step * 0.026 + layer * 0.001,
            "cpu_duration(us)": 12.5,
            "kcache_start_addr": 1 << 44,
            "vcache_start_addr": (1 << 44) + (1 << 30),
            "kv_cache_range": 61 * len(self.prompts) * BLOCK_BYTES,
            "seq_lens": seq_lens,
        }

    def write(self, step: int, layer: int, spans: list[tuple[int, int]]) -> None:
        rows = []
        for table, (context, count) in zip(self.tables, spans, strict=True):
            for token in range(context, context + count):
                block, slot = table[token // BLOCK_SIZE], token % BLOCK_SIZE
                k = [self.k_address(block, slot, e) for e in (0, HEADS * HEAD_SIZE - 1)]
                v = [self.v_address(block, slot, e) for e in (0, HEADS * HEAD_SIZE - 1)]
                rows.append([*k, *v, 100 + token % 7])
        head = self.head(step, layer, [count for _, count in spans])
        self.writes.append(head | {"kv_write_pattern_record": rows})

    def k_address(self, block: int, slot: int, element: int) -> int:
        """K: [block, head, head size / x, block size, x]."""
        head, within = divmod(element, HEAD_SIZE)
        group, x = divmod(within, X)
        places = ((block * HEADS + head) * (HEAD_SIZE // X) + group) * BLOCK_SIZE + slot
        return (places * X + x) * 2

    def v_address(self, block: int, slot: int, element: int) -> int:
        """V: [block, head, head size, block size]."""
        head, within = divmod(element, HEAD_SIZE)
        return (((block * HEADS + head) * HEAD_SIZE + within) * BLOCK_SIZE + slot) * 2

    def read(self, step: int, layer: int, spans: list[tuple[int, int]]) -> None:
        requests, stride = len(spans), WARPS * BLOCKS_OF_WARP
        k, v = (np.full((requests + 1, stride, 3), -1) for _ in range(2))  # a row to spill into
        for row, (context, _) in enumerate(spans):
            for position in range(context // BLOCK_SIZE + 1):
                warp, n = position % WARPS, position // WARPS
                result = (6 + 14 * n, 12, self.tables[row][position])
                k[row, warp * BLOCKS_OF_WARP + n] = result
                slot = warp * BLOCKS_OF_WARP + (position if self.v_rule == "lossy" else n)
                if slot < stride:  # or it is the next row's, and there past the last request
                    v[row, slot] = result
        head = self.head(step, layer, [1] * requests)
        flat = {
            f"{name}_read_pattern_record": slots[:requests].reshape(requests, -1).tolist()
            for name, slots in (("k", k), ("v", v))
        }
        sizes = {"req_stride": stride * 3, "block_acc_stride": BLOCKS_OF_WARP}
        self.reads.append(head | sizes | flat)

    def files(self, folder: Path) -> tuple[Path, Path]:
        paths = (folder / "kv_read_pattern.json", folder / "kv_write_pattern.json")
        for path, records in zip(paths, (self.reads, self.writes), strict=True):
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return paths


PROMPTS = [16, 343, 15, 893]
