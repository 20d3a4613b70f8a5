"""How the report says things: metrics, settings and numbers as people read them."""

import math
from dataclasses import dataclass
from typing import Any

from kvscope.analyse.checklist import EVERY_ORACLE
from kvscope.analyse.outputs import DIFFER
from kvscope.analyse.reason import MAXIMUM_STALL_SHARE, MAXIMUM_VARIATION
from kvscope.plan import registry
from kvscope.plan.repeats import MINIMUM_REPEATS
from kvscope.report.number import Number

NBSP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Shown:
    """A metric as the report shows it: `scale` turns the table's unit into `unit`.

    One that not `always` matters is no column of a table where it is 0 or undefined in every
    experiment. One that is `signed` may be negative: its axis shows intervals below 0. More of it
    is better where `better` is 1, less where it is -1.
    """

    metric: str
    heading: str
    unit: str
    scale: float = 1.0
    always: bool = True
    signed: bool = False
    better: int = 0


THROUGHPUT = Shown("throughput_tokens_per_s", "Throughput", "tokens/s", better=1)
WITHOUT_STALLS = Shown(
    "throughput_without_stalls_tokens_per_s", "Throughput without stalls", "tokens/s", better=1
)
MAKESPAN = Shown("makespan_s", "Makespan", "s", better=-1)
TTFT_MEAN = Shown("ttft_mean_s", "TTFT, mean", "s", better=-1)
TTFT_P50 = Shown("ttft_p50_s", "TTFT, median", "s", better=-1)
TTFT_P99 = Shown("ttft_p99_s", "TTFT, p99", "s", better=-1)
ITL_MEAN = Shown("itl_mean_s", "ITL, mean", "ms", 1e3, better=-1)
ITL_P50 = Shown("itl_p50_s", "ITL, median", "ms", 1e3, better=-1)
ITL_P99 = Shown("itl_p99_s", "ITL, p99", "ms", 1e3, better=-1)
TPOT_MEAN = Shown("tpot_mean_s", "TPOT, mean", "ms", 1e3, always=False, better=-1)
TPOT_P50 = Shown("tpot_p50_s", "TPOT, median", "ms", 1e3, always=False, better=-1)
TPOT_P99 = Shown("tpot_p99_s", "TPOT, p99", "ms", 1e3, always=False, better=-1)
KV_BLOCKS_MEAN = Shown("kv_block_utilization_mean", "KV use in blocks, mean", "%", 100.0)
KV_BLOCKS_PEAK = Shown("kv_block_utilization_peak", "KV use in blocks, peak", "%", 100.0)
KV_TOKENS_MEAN = Shown("kv_token_utilization_mean", "KV use in tokens, mean", "%", 100.0)
PREEMPTIONS = Shown("preemptions", "Preemptions", "a repeat", better=-1)
RECOMPUTED = Shown("recomputed_tokens", "Recomputed tokens", "tokens a repeat", better=-1)
ABORTED = Shown("aborted_requests", "Aborted requests", "a repeat", always=False, better=-1)
PREFILL = Shown("prefill_throughput_tokens_per_s", "Prefill throughput", "tokens/s", better=1)
DECODE = Shown("decode_throughput_tokens_per_s", "Decode throughput", "tokens/s", better=1)
MIXED = Shown("mixed_throughput_tokens_per_s", "Throughput of mixed passes", "tokens/s", better=1)
PASSES = Shown("forward_passes", "Forward passes", "a repeat")
OVERHEAD_PAPER = Shown(
    "resume_overhead_paper_s", "Resume overhead, the paper's", "s", always=False, better=-1
)
OVERHEAD_NET = Shown(
    "resume_overhead_net_s", "Resume overhead, net", "s", always=False, signed=True, better=-1
)
OVERHEAD_CONTROL = Shown(
    "resume_overhead_net_control_s",
    "Net, where nothing resumes",
    "ms",
    1e3,
    always=False,
    signed=True,
)
OVERHEAD_UNCERTAINTY = Shown(
    "resume_overhead_net_uncertainty_s", "Net, uncertainty", "ms", 1e3, always=False
)
BEYOND_AMPLE = Shown(
    "makespan_beyond_ample_s", "Makespan beyond ample", "s", always=False, signed=True, better=-1
)
COST_OF_ONE = Shown(
    "resume_overhead_net_per_preemption_s",
    "Net cost of a preemption",
    "ms",
    1e3,
    signed=True,
    better=-1,
)
SWAP_BANDWIDTH = Shown("swap_bandwidth_bytes_per_s", "Swap bandwidth", "GB/s", 1e-9, better=1)
HOST_PEAK = Shown("host_block_utilization_peak", "Host pool in use, peak", "%", 100.0)
READ_PARALLELISM = Shown("kv_read_parallelism", "Reads at a time", "reads", always=False)
READ_AMPLIFICATION = Shown("kv_read_amplification", "Tokens read per token held", "ratio")
LAG_P50 = Shown("kv_lag_p50_s", "K to V, median", "µs", 1e6)
LAG_P95 = Shown("kv_lag_p95_s", "K to V, p95", "µs", 1e6)
IDLE_P50 = Shown("kv_idle_p50_s", "Idle time, median", "ms", 1e3)
IDLE_P95 = Shown("kv_idle_p95_s", "Idle time, p95", "ms", 1e3)
IDLE_SHARE = Shown("kv_idle_share", "Time blocks lie idle", "%", 100.0, always=False)
ACCESS_FREE = Shown("kv_access_free_share", "Pass time without access", "%", 100.0)

# What the table of experiments and experiments.csv show.
MAIN = (
    THROUGHPUT,
    WITHOUT_STALLS,
    MAKESPAN,
    BEYOND_AMPLE,
    OVERHEAD_PAPER,
    OVERHEAD_NET,
    OVERHEAD_CONTROL,
    OVERHEAD_UNCERTAINTY,
    PREEMPTIONS,
    RECOMPUTED,
    ABORTED,
    TTFT_MEAN,
    TTFT_P99,
    ITL_MEAN,
    ITL_P99,
    TPOT_MEAN,
    KV_BLOCKS_MEAN,
    KV_TOKENS_MEAN,
    READ_PARALLELISM,
    IDLE_SHARE,
)

KEYS = {
    "model": "model",
    "model.dtype": "number type",
    "device": "device",
    "engine.attention": "attention kernels",
    "engine.max_model_len": "longest request (tokens)",
    "engine.max_num_batched_tokens": "most tokens in a pass",
    "engine.max_num_seqs": "most requests in a batch",
    "workload": "workload",
    "batching": "batching policy",
    "overflow": "overflow policy",
    "cache.block_size": "block size (tokens)",
    "cache.blocks": "KV cache (blocks)",
    "cache.tokens": "KV cache (tokens)",
    "cache.gib": "KV cache (GiB)",
    "cache.layout": "layout of the cache",
    "cache.watermark": "blocks kept free (share)",
}

# A setting in running text, where '<title> <value>' would be clumsy.
PHRASES = {
    "model": "{}",
    "device": "{}",
    "engine.attention": "{} attention",
    "engine.max_num_batched_tokens": "passes of {} tokens at most",
    "engine.max_num_seqs": "batches of {} requests at most",
    "engine.max_model_len": "requests of {} tokens at most",
    "workload": "{}",
    "batching": "{}",
    "overflow": "{}",
    "cache.block_size": "block size {}",
    "cache.blocks": "KV cache {} blocks",
    "cache.tokens": "KV cache {} tokens",
    "cache.gib": "KV cache {} GiB",
    "cache.layout": "cache {}",
}

# Values of ours that are not words as they stand; a user's own values are left as they are.
VALUES = {
    "per_block": "per block",
    "by_layer": "by layer",
    "by_block": "by block",
    "all_at_once": "all at once",
}

REASONS = {
    "too_few_repeats": f"fewer than {MINIMUM_REPEATS} repeats, too few for an interval",
    "unstable": "the makespan varies between repeats by more than "
    f"{100 * MAXIMUM_VARIATION:.0f}{NBSP}% (standard deviation over mean)",
    "stalled": f"a repeat lost more than {100 * MAXIMUM_STALL_SHARE:.0f}{NBSP}% of its makespan "
    "in stalls",
    "disturbed": f"fewer than {MINIMUM_REPEATS} repeats were undisturbed by other load",
    "not_precise": "the throughput's interval was not as narrow after the most repeats as was "
    "asked for",
    "no_warm_up": "nothing ran before the measured part",
    "warm_up_incomplete": "the measured part had forward passes of shapes that warm-up had not",
    DIFFER: "experiments that must give the same tokens (float32, the same weights and prompts) "
    "gave different ones",
    "profiler_lost_events": "the profiler did not bring its trace home",
    "failed": "the run did not come to its end",
}


SENTENCES = {oracle.name: oracle.sentence for oracle in EVERY_ORACLE}


def reason_in_words(name: str) -> str:
    """What a validity reason means: of an oracle, the sentence that does not hold."""
    if name in SENTENCES:
        return f"this does not hold: {SENTENCES[name]}"
    return REASONS.get(name, name.replace("_", " "))


def key_title(key: str) -> str:
    """A configuration key as a column or axis is headed."""
    label = registry.label(key)
    return label.title if label else KEYS.get(key, key)


def value_text(value: Any) -> str:
    """A configuration value as it is written in a configuration; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_words(value: Any) -> str:
    """A configuration value in words: 'prefill first'."""
    if not isinstance(value, str):
        return value_text(value)
    if any(value in registry.find_registered(kind) for kind in registry.KINDS):
        return value.replace("_", " ")
    return VALUES.get(value, value)


def setting_words(key: str, value: Any) -> str:
    """A key with its value: 'block size 32', 'KV cache 64 blocks', 'pinned'."""
    words, label = value_words(value), registry.label(key)
    phrase = label.phrase if label else PHRASES.get(key)
    return phrase.format(words) if phrase else f"{key_title(key)} {words}"


def decimals_for(value: float, digits: int) -> int:
    """Decimal places that show `value` with this many significant digits, at least 0."""
    if value == 0 or math.isnan(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def number_text(value: float, digits: int = 3) -> str:
    """A number with at least this many significant digits; 1,234.5 style; '–' for NaN."""
    if math.isnan(value):
        return "–"
    text = f"{value:,.{min(decimals_for(value, digits), 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and value == round(value) else text


def estimate_text(number: Number, shown: Shown) -> tuple[str, str]:
    """A value and its '± half' (empty without an interval) in the unit shown.

    The half width has two significant digits, the value ends at the same decimal place.
    """
    value, half = number.value * shown.scale, number.half * shown.scale
    if math.isnan(value):
        return "–", ""
    if math.isnan(half):
        return number_text(value), ""
    if half == 0:
        return number_text(value), "± 0"
    places = min(decimals_for(half, 2), decimals_for(value, 4) if value else 6)
    return f"{value:,.{places}f}", f"± {half:,.{places}f}"


def percent(share: float) -> str:
    """A share as a percentage of two significant digits, or whole from 10 % on."""
    return f"{100 * share:.{min(decimals_for(100 * share, 2), 2)}f}{NBSP}%"


def joined(names: list[str], last: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def plural(count: int, thing: str) -> str:
    """'1 pass', '2 passes', '3 experiments'."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}{'es' if thing.endswith('s') else 's'}"
