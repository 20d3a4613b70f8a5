"""A plan of two windows and full attention, made by hand."""

from kvscope.tables.kv_bytes import AttentionLayers, HeldBlocks, KvPlan, RankPlan
from kvscope.tables.kv_plan import KvGroup

WINDOW = KvGroup("SlidingWindow", 2, 16, 4096, 4096, 8192, window_tokens=64)
FULL = KvGroup("FullAttention", 1, 16, 2048, 4096, 8192)
PLAN = KvPlan(
    model="made-up",
    platform="cpu",
    max_model_len=4096,
    max_num_batched_tokens=512,
    max_num_seqs=256,
    prefix_caching=False,
    kv_cache_dtype="auto",
    memory_bytes=101 * 8192,
    blocks=101,
    capacity_tokens=1600,
    max_concurrency=0.4,
    ranks=(RankPlan(3, 2_000, 101 * 8192, 101),),
    groups=(WINDOW, WINDOW, FULL),
    longest=(37, 37, 256),
    held=(
        HeldBlocks(256, (5, 5, 16), (16, 16, 16)),
        HeldBlocks(512, (5, 5, 32), (32, 32, 32)),
        None,
    ),
    weights=1_000,
    attention=(AttentionLayers(8, None), AttentionLayers(8, 64)),
)
