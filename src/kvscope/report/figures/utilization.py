"""KV cache utilization of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments

FIGURE = over_experiments(
    "KV cache utilization",
    "Share of the cache's blocks that are in use, and of its token slots that hold a token; means "
    "weighted by the duration of passes. Beside it the size of the blocks in use, as K and V.",
    [
        Panel(
            "KV cache utilization",
            (
                "kv_block_utilization_mean",
                "kv_token_utilization_mean",
                "kv_block_utilization_peak",
            ),
        ),
        Panel("KV cache size", ("kv_bytes_peak",)),
    ],
    order=80,
)
