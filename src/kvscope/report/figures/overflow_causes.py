"""What overflow makes an engine do: tokens computed again, bytes moved, waiting, hits."""

from kvscope.report.data import StudyData
from kvscope.report.figures.over_experiments import Panel, over_experiments


def varies(study: StudyData) -> bool:
    """Whether there are overflow policies to compare."""
    return len({run.flat.get("overflow") for run in study.complete}) > 1


FIGURE = over_experiments(
    "Why: what each policy computes, moves and waits for",
    "Tokens computed again; bytes of K and V that a policy swaps, and that vLLM's own offloading "
    "stores and loads; bytes that it stores and never loads; how long a preempted request waits; "
    "time in which nothing runs, because requests wait for loads; the share of prompt tokens found "
    "in the prefix cache. Sums over a repeat, mean over repeats.",
    [
        Panel("Preemptions", ("preemptions",)),
        Panel("Tokens computed again", ("recomputed_tokens",)),
        Panel("Bytes moved", ("swapped_bytes", "offload_stored_bytes", "offload_loaded_bytes")),
        Panel("Stored and never loaded", ("offload_unused_bytes",)),
        Panel("Waiting of a preempted request", ("preemption_wait_mean_s",)),
        Panel("Nothing runs but a load", ("offload_idle_s",)),
        Panel("Prefix cache hits", ("prefix_cache_hit_rate",)),
    ],
    suits=varies,
    order=6,
)
