"""Metrics of KV events over experiments."""

from kvscope.api.figures import over_experiments

FIGURE = over_experiments.over_experiments(
    "How attention reads the KV cache",
    "Reads at a time: total duration of reads over the time in which there was any. Tokens read "
    "per token held: 1 if every K and V of a context is read once a layer and pass. K to V: from "
    "the start of a block's K read to that of its V read. Idle: between the accesses of one "
    "forward pass to a block of one layer and those of the next. Mean over repeats.",
    [
        over_experiments.Panel("Reads at a time", ("kv_read_parallelism",)),
        over_experiments.Panel("Tokens read per token held", ("kv_read_amplification",)),
        over_experiments.Panel("K to V", ("kv_lag_p50_s", "kv_lag_p95_s")),
        over_experiments.Panel("Idle time", ("kv_idle_p50_s", "kv_idle_p95_s")),
        over_experiments.Panel("Idle share", ("kv_idle_share", "kv_access_free_share")),
    ],
    lead="kv_read_amplification",
    order=190,
)
