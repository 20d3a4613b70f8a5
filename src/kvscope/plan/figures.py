"""The names of the figures that a study may ask for, in the order of the page."""

from typing import Literal, get_args

FigureName = Literal[
    "throughput",
    "strategies",
    "window_fill",
    "latency",
    "utilization",
    "preemptions",
    "resume_overhead",
    "swapping",
    "kv_timeline",
    "batch_composition",
    "access_pattern",
    "access_gaps",
    "access_metrics",
]
FIGURES: tuple[str, ...] = get_args(FigureName)
