"""Figures that are declarations of metrics over experiments: a title, a caption, panels."""

from kvscope.plan.figures import Axes
from kvscope.report.axes import strategy_key
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.over_experiments import Panel, over_experiments

THROUGHPUT = over_experiments(
    "Throughput",
    "Prompt and output tokens of all requests over the makespan. Without stalls: over the makespan "
    "minus the time of stalled passes beyond the median of their class. Mean over repeats.",
    [Panel("Throughput", ("throughput_tokens_per_s", "throughput_without_stalls_tokens_per_s"))],
    order=10,
)

STRATEGIES = over_experiments(
    "Batching strategies",
    "Throughput of the whole repeat, of its prefill, decode and mixed forward passes, and the "
    "number of passes.",
    [
        Panel("Throughput", ("throughput_tokens_per_s",)),
        Panel("Prefill throughput", ("prefill_throughput_tokens_per_s",)),
        Panel("Decode throughput", ("decode_throughput_tokens_per_s",)),
        Panel("Throughput of mixed passes", ("mixed_throughput_tokens_per_s",)),
        Panel("Forward passes", ("forward_passes",)),
    ],
    own_axes=lambda study: Axes(x=strategy_key(study)),
    suits=lambda study: strategy_key(study) is not None,
    order=30,
)

LATENCY = over_experiments(
    "Latency",
    "Time to first token (TTFT) and time per output token (TPOT: the time from the first token to "
    "the last, over the tokens after the first) over requests; inter-token latency (ITL) over "
    "output tokens. Mean, median and 99th percentile of each repeat, then the mean over repeats.",
    [
        Panel("Time to first token", ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s"), shared=False),
        Panel("Inter-token latency", ("itl_mean_s", "itl_p50_s", "itl_p99_s"), shared=False),
        Panel("Time per output token", ("tpot_mean_s", "tpot_p50_s", "tpot_p99_s"), shared=False),
    ],
    order=50,
)

UTILIZATION = over_experiments(
    "KV cache utilization",
    "Share of the cache's blocks that are in use, and of its token slots that hold a token; means "
    "weighted by the duration of passes. Beside it the bytes of what the blocks in use "
    "hold: K and V, or activations where an engine keeps these instead.",
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

PREEMPTIONS = over_experiments(
    "Preemptions",
    "Preemptions, and tokens that are computed again when requests resume. Mean over repeats.",
    [Panel("Preemptions", ("preemptions",)), Panel("Recomputed tokens", ("recomputed_tokens",))],
    order=90,
)


def preempts(run: ReportedRun) -> bool:
    """Whether the experiment preempts, or may do so once it has run."""
    return not run.complete or run.number("preemptions").value > 0


RESUME_OVERHEAD = over_experiments(
    "Resume overhead",
    "The cost of preemptions in a repeat. The paper's measure counts the whole duration of every "
    "forward pass that resumes a request, and the copies to the host as its clock read them: on a "
    "GPU until they are issued. The net measure counts only "
    "the time of that pass beyond the work due without the preemption. Makespan beyond ample: the "
    "makespan minus that of the same requests on a cache that never overflows. Only experiments "
    "that preempt are shown.",
    [
        Panel("Resume overhead", ("resume_overhead_as_published_s", "resume_overhead_net_s")),
        Panel("Makespan beyond ample", ("makespan_beyond_ample_s",)),
    ],
    wanted=preempts,
    lead="resume_overhead_net_s",
    order=100,
)

SWAPPING = over_experiments(
    "One preemption, and swapping",
    "Net resume overhead over preemptions; bytes of K and V copied to the host and back over the "
    "time of the copies; the peak share of the host pool in use.",
    [
        Panel("Net cost of a preemption", ("resume_overhead_net_per_preemption_s",)),
        Panel("Swap bandwidth", ("swap_bandwidth_bytes_per_s",)),
        Panel("Host pool", ("host_block_utilization_peak",)),
    ],
    wanted=preempts,
    order=120,
)


def has_overflow_policies(study: StudyData) -> bool:
    """Whether there are overflow policies to compare."""
    return len({run.flat.get("overflow") for run in study.complete}) > 1


OVERFLOW_CAUSES = over_experiments(
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
    suits=has_overflow_policies,
    order=6,
)
