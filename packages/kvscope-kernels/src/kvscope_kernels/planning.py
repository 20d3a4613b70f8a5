"""Number of KV events that an experiment on a GPU records, and their size on disk."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from kvscope.api.experiments import Experiment
from kvscope.api.tracing import tracing
from kvscope_kernels.kv_events import RECORD

TILE_ROWS = 64  # of a prefill's tile: queries times the query heads that share a KV head
TILE_ROWS_FLOAT32 = 16
# Bytes of an event in kernel_events.jsonl.zst and in the Parquet tables. 5.4 and 2.4 of 10 million
# events (bench/results/collect_events.json); 5.7 and 3.8 of a run of 180,000.
STORED_BYTES = 6 + 4


class Workload(Protocol):
    """The workload of an experiment, as far as plans of tracing read it."""

    def lengths(self, seed: int) -> Sequence[Any]:
        """The lengths of each request."""


def tile_tokens(group: int, element_bytes: int) -> int:
    """Most queries of a tile on a GPU, where `group` query heads share a KV head."""
    return max(1, (TILE_ROWS if element_bytes < 4 else TILE_ROWS_FLOAT32) // group)


def events_of_a_repeat(experiment: Experiment) -> int:
    """KV events of serving the request list once on a GPU, of a traced experiment.

    By what kernels owe (docs/KV_EVENTS.md), for each traced layer: 2 for each block that a request
    writes in a pass; and for each traced KV head 2 for each block that a tile of queries reads.
    Exact where prompts are computed whole and once: what preemptions compute again comes on top,
    and what the prefix cache has is less.
    """
    asked, model = experiment.tracing, experiment.model
    tile = tile_tokens(model.attention_heads // model.kv_heads, model.number_bytes)
    writes, reads = _blocks(experiment.workload, experiment.seed, experiment.cache.block_size, tile)
    layers, heads = (
        -(-model.layers // asked.layer_stride),
        -(-model.kv_heads // asked.head_stride),
    )
    return 2 * layers * (writes + heads * reads) // asked.step_stride


def events_on_disk(experiment: Experiment) -> tracing.EventsOnDisk:
    """The temporary file of a repeat's events, and the events as a run keeps them."""
    events = events_of_a_repeat(experiment)
    return tracing.EventsOnDisk(RECORD.itemsize * events, STORED_BYTES * events)


@lru_cache(maxsize=64)
def _blocks(workload: Workload, seed: int, block_size: int, tile: int) -> tuple[int, int]:
    """Blocks that requests write in passes, and that tiles read of one KV head."""
    writes = reads = 0
    for length in workload.lengths(seed):
        last = length.total - 1  # the last token that comes out is in no pass
        tiles = (min(end, length.prompt) for end in range(tile, length.prompt + tile, tile))
        writes += -(-length.prompt // block_size) + last - length.prompt
        reads += sum(-(-tokens // block_size) for tokens in tiles)
        reads += _read(last, block_size) - _read(length.prompt, block_size)
    return writes, reads


def _read(tokens: int, block_size: int) -> int:
    """Blocks that contexts of 1, 2, …, `tokens` tokens have in all."""
    full, rest = divmod(tokens, block_size)
    return block_size * full * (full + 1) // 2 + rest * (full + 1)
