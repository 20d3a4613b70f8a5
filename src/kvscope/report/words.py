"""Metrics, settings and numbers as the report writes them."""

import math
import re
from dataclasses import dataclass
from typing import Any

from kvscope.analyse.checklist import EVERY_ORACLE
from kvscope.analyse.metric import Metric
from kvscope.analyse.metrics import METRICS
from kvscope.analyse.outputs import DIFFER
from kvscope.analyse.study_metrics import STUDY_METRICS, StudyMetric
from kvscope.plan import registry
from kvscope.report.number import Number

NBSP = "\N{NO-BREAK SPACE}"
# One of what is counted, in the plural.
ONE = re.compile(r"^(1 [a-z ]+)s$")


_ALL: tuple[Metric | StudyMetric, ...] = (*METRICS, *STUDY_METRICS)
_METRICS = {metric.name: metric for metric in _ALL}
# By the unit of a metric and the unit it is displayed in: what turns one into the other.
_SCALES = {
    ("s", "ms"): 1e3,
    ("s", "µs"): 1e6,
    ("share", "%"): 100.0,
    ("B/s", "GB/s"): 1e-9,
    ("B", "GiB"): 2.0**-30,
}


@dataclass(frozen=True)
class Display:
    """How the report displays a metric of the registry, and in which unit.

    A metric that is not `always` of interest is no column of a table where it is 0 or undefined in
    every experiment. One that is `signed` may be negative: its axis shows intervals below 0. More
    of it is better where `better` is 1, less where it is -1.
    """

    metric: str
    unit: str
    always: bool = True
    signed: bool = False
    better: int = 0

    @property
    def heading(self) -> str:
        """What a column or an axis says."""
        return _METRICS[self.metric].heading

    @property
    def scale(self) -> float:
        """What turns a value of the `metrics` table into `unit`."""
        return _SCALES.get((_METRICS[self.metric].unit, self.unit), 1.0)


THROUGHPUT = Display("throughput_tokens_per_s", "tokens/s", better=1)
WITHOUT_STALLS = Display("throughput_without_stalls_tokens_per_s", "tokens/s", better=1)
MAKESPAN = Display("makespan_s", "s", better=-1)
TTFT_MEAN = Display("ttft_mean_s", "s", better=-1)
TTFT_P50 = Display("ttft_p50_s", "s", better=-1)
TTFT_P99 = Display("ttft_p99_s", "s", better=-1)
ITL_MEAN = Display("itl_mean_s", "ms", better=-1)
ITL_P50 = Display("itl_p50_s", "ms", better=-1)
ITL_P99 = Display("itl_p99_s", "ms", better=-1)
TPOT_MEAN = Display("tpot_mean_s", "ms", always=False, better=-1)
TPOT_P50 = Display("tpot_p50_s", "ms", always=False, better=-1)
TPOT_P99 = Display("tpot_p99_s", "ms", always=False, better=-1)
KV_BLOCKS_MEAN = Display("kv_block_utilization_mean", "%")
KV_BLOCKS_PEAK = Display("kv_block_utilization_peak", "%")
KV_BYTES_PEAK = Display("kv_bytes_peak", "GiB")
KV_TOKENS_MEAN = Display("kv_token_utilization_mean", "%")
PREEMPTIONS = Display("preemptions", "a repeat", better=-1)
RECOMPUTED = Display("recomputed_tokens", "tokens a repeat", better=-1)
ABORTED = Display("aborted_requests", "a repeat", always=False, better=-1)
PREFILL = Display("prefill_throughput_tokens_per_s", "tokens/s", better=1)
DECODE = Display("decode_throughput_tokens_per_s", "tokens/s", better=1)
MIXED = Display("mixed_throughput_tokens_per_s", "tokens/s", better=1)
PASSES = Display("forward_passes", "a repeat")
OVERHEAD_PAPER = Display("resume_overhead_as_published_s", "s", always=False, better=-1)
OVERHEAD_NET = Display("resume_overhead_net_s", "s", always=False, signed=True, better=-1)
OVERHEAD_CONTROL = Display("resume_overhead_net_control_s", "ms", always=False, signed=True)
OVERHEAD_UNCERTAINTY = Display("resume_overhead_net_uncertainty_s", "ms", always=False)
BEYOND_AMPLE = Display("makespan_beyond_ample_s", "s", always=False, signed=True, better=-1)
COST_OF_ONE = Display("resume_overhead_net_per_preemption_s", "ms", signed=True, better=-1)
SWAP_BANDWIDTH = Display("swap_bandwidth_bytes_per_s", "GB/s", better=1)
HOST_PEAK = Display("host_block_utilization_peak", "%")
READ_PARALLELISM = Display("kv_read_parallelism", "reads", always=False)
READ_AMPLIFICATION = Display("kv_read_amplification", "ratio")
LAG_P50 = Display("kv_lag_p50_s", "µs")
LAG_P95 = Display("kv_lag_p95_s", "µs")
IDLE_P50 = Display("kv_idle_p50_s", "ms")
IDLE_P95 = Display("kv_idle_p95_s", "ms")
IDLE_SHARE = Display("kv_idle_share", "%", always=False)
ACCESS_FREE = Display("kv_access_free_share", "%")

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

# kvscope's own values in words; other packages' values stay as they are.
VALUES = {
    "per_block": "per block",
    "by_layer": "by layer",
    "by_block": "by block",
    "all_at_once": "all at once",
}

REASONS = {
    "no_warm_up": "there was no warm-up before the measured part",
    "warm_up_incomplete": "the measured part had forward passes of shapes that the warm-up lacked",
    DIFFER: "experiments that must give the same tokens (float32, the same weights and prompts) "
    "gave different ones",
    "profiler_lost_events": "the profiler's trace is missing or incomplete",
    "failed": "the run did not complete",
}


SENTENCES = {oracle.name: oracle.sentence for oracle in EVERY_ORACLE}


def reason_in_words(name: str) -> str:
    """What a validity reason means: of an oracle, the sentence that does not hold."""
    if name in SENTENCES:
        return f"violated: {SENTENCES[name]}"
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
    """A key with its value: 'block size 32', 'KV cache 64 blocks', '1 request', 'pinned'."""
    words, label = value_words(value), registry.label(key)
    phrase = label.phrase if label else PHRASES.get(key)
    text = phrase.format(words) if phrase else f"{key_title(key)} {words}"
    return ONE.sub(r"\1", text)


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


def estimate_text(number: Number, shown: Display) -> tuple[str, str]:
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


def join_words(names: list[str], last: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def plural(count: int, thing: str) -> str:
    """'1 pass', '2 passes', '3 experiments'."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}{'es' if thing.endswith('s') else 's'}"
