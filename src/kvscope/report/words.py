"""How the report says things: metrics and keys in words, numbers as people read them."""

import math
from dataclasses import dataclass
from typing import Any

from kvscope.analyse.validity import MAXIMUM_STALL_SHARE, MAXIMUM_VARIATION, MINIMUM_REPEATS
from kvscope.report.data import Number

NBSP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Shown:
    """A metric as the report shows it: `scale` turns the table's unit into `unit`."""

    metric: str
    heading: str
    unit: str
    scale: float = 1.0


THROUGHPUT = Shown("throughput_tokens_per_s", "Throughput", "tokens/s")
WITHOUT_STALLS = Shown(
    "throughput_without_stalls_tokens_per_s", "Throughput without stalls", "tokens/s"
)
MAKESPAN = Shown("makespan_s", "Makespan", "s")
TTFT_MEAN = Shown("ttft_mean_s", "TTFT, mean", "s")
TTFT_P50 = Shown("ttft_p50_s", "TTFT, median", "s")
TTFT_P99 = Shown("ttft_p99_s", "TTFT, p99", "s")
ITL_MEAN = Shown("itl_mean_s", "ITL, mean", "ms", 1e3)
ITL_P50 = Shown("itl_p50_s", "ITL, median", "ms", 1e3)
ITL_P99 = Shown("itl_p99_s", "ITL, p99", "ms", 1e3)
KV_BLOCKS_MEAN = Shown("kv_block_utilization_mean", "KV use in blocks, mean", "%", 100.0)
KV_BLOCKS_PEAK = Shown("kv_block_utilization_peak", "KV use in blocks, peak", "%", 100.0)
KV_TOKENS_MEAN = Shown("kv_token_utilization_mean", "KV use in tokens, mean", "%", 100.0)
PREEMPTIONS = Shown("preemptions", "Preemptions", "a repeat")
RECOMPUTED = Shown("recomputed_tokens", "Recomputed tokens", "tokens a repeat")

# What the table of experiments and experiments.csv show.
MAIN = (
    THROUGHPUT,
    WITHOUT_STALLS,
    MAKESPAN,
    TTFT_MEAN,
    TTFT_P99,
    ITL_MEAN,
    ITL_P99,
    KV_BLOCKS_MEAN,
    KV_TOKENS_MEAN,
    PREEMPTIONS,
    RECOMPUTED,
)

KEYS = {
    "model": "model",
    "device": "device",
    "workload": "workload",
    "batching": "batching policy",
    "overflow": "overflow policy",
    "cache.blocks": "KV cache (blocks)",
    "cache.block_size": "block size (tokens)",
    "cache.gib": "KV cache (GiB)",
    "batching.chunk_tokens": "chunk (tokens)",
    "workload.num_requests": "requests",
    "workload.prompt_tokens": "prompt tokens",
    "workload.output_tokens": "output tokens",
    "workload.rate_per_s": "arrival rate (requests/s)",
    "workload.theta": "Zipf exponent",
    "engine.max_num_seqs": "most requests in a batch",
    "engine.max_num_batched_tokens": "most tokens in a pass",
    "engine.max_model_len": "longest request (tokens)",
    "device.threads": "CPU threads",
    "model.dtype": "number type",
}

REASONS = {
    "too_few_repeats": f"fewer than {MINIMUM_REPEATS} repeats, too few for an interval",
    "unstable": "the makespan varies between repeats by more than "
    f"{100 * MAXIMUM_VARIATION:.0f}{NBSP}% (standard deviation over mean)",
    "stalled": f"a repeat lost more than {100 * MAXIMUM_STALL_SHARE:.0f}{NBSP}% of its makespan "
    "in stalls",
    "no_warm_up": "nothing ran before the measured part",
    "warm_up_incomplete": "the measured part had forward passes of shapes that warm-up had not",
    "tokens_not_conserved": "scheduled tokens do not add up to what the requests needed",
    "tokens_missing": "a request got fewer or more output tokens than were asked for",
    "outputs_differ": "a request got different tokens in different repeats",
    "profiler_lost_events": "the profiler did not bring its trace home",
    "failed": "the run did not come to its end",
}


def reason_in_words(name: str) -> str:
    """What a validity reason means."""
    return REASONS.get(name, name.replace("_", " "))


def key_title(key: str) -> str:
    """A configuration key as a column or axis is headed."""
    return KEYS.get(key, key)


def value_text(value: Any) -> str:
    """A configuration value; a dash where an experiment has none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_text(key: str, value: Any) -> str:
    """A key with its value: 'KV cache 64 blocks' would need a grammar; 'KV cache (blocks) 64'."""
    return f"{key_title(key)} {value_text(value)}"


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
