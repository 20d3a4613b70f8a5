"""KV cache utilization of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import KV_BLOCKS_MEAN, KV_BLOCKS_PEAK, KV_BYTES_PEAK, KV_TOKENS_MEAN

FIGURE = over_experiments(
    "KV cache utilization",
    "Share of the cache's blocks that are in use, and of its token slots that hold a token; means "
    "weighted by the duration of passes. Beside it the size of the blocks in use, as K and V.",
    [
        Panel("KV cache utilization", (KV_BLOCKS_MEAN, KV_TOKENS_MEAN, KV_BLOCKS_PEAK)),
        Panel("KV cache size", (KV_BYTES_PEAK,)),
    ],
    order=80,
)
