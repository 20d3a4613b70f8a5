"""How attention reads the KV cache: metrics of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import (
    ACCESS_FREE,
    IDLE_P50,
    IDLE_P95,
    IDLE_SHARE,
    LAG_P50,
    LAG_P95,
    READ_AMPLIFICATION,
    READ_PARALLELISM,
)

FIGURE = over_experiments(
    "How attention reads the KV cache",
    "Reads at a time: total duration of reads over the time in which there was any. Tokens read "
    "per token held: 1 if every K and V of a context is read once a layer and pass. K to V: from "
    "the start of a block's K read to that of its V read. Idle: between the accesses of one "
    "forward pass to a block of one layer and those of the next. Mean over repeats.",
    [
        Panel("Reads at a time", (READ_PARALLELISM,)),
        Panel("Tokens read per token held", (READ_AMPLIFICATION,)),
        Panel("K to V", (LAG_P50, LAG_P95)),
        Panel("Idle time", (IDLE_P50, IDLE_P95)),
        Panel("Idle share", (IDLE_SHARE, ACCESS_FREE)),
    ],
    lead=READ_AMPLIFICATION,
    order=190,
)
