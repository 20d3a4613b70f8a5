"""Combinations of values that cannot work, found before anything runs."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvscope.plan import policies
from kvscope.plan.fields import MAX_TOKENS, impossible

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment

# What vLLM's attention backends take (CPUAttentionBackend.get_supported_head_sizes, and the
# block sizes its CPU and CUDA platforms ask for). kvscope's own, `paged`, takes any.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
BLOCK_MULTIPLE = {"cpu": 32, "cuda": 16}
INSTRUMENTED_DTYPES = ("float32", "bfloat16")
WHOLE_PROMPTS = ("prefill_first", "mixed")


def check(experiment: "Experiment") -> None:
    """Raise pydantic's error for the first rule that is broken."""
    for rule in RULES:
        rule(experiment)


def _policies_exist(experiment: "Experiment") -> None:
    for kind in policies.KINDS:
        name = getattr(experiment, kind).name
        if name not in policies.registered(kind):
            raise impossible(policies.unknown(kind, name), kind)


def _settings_are_plain(experiment: "Experiment") -> None:
    """Another package's settings may be anything that JSON holds: the id is made of them."""
    for kind in policies.KINDS:
        chosen = getattr(experiment, kind)
        settings = chosen.settings if isinstance(chosen, policies.Plugin) else {}
        for key, value in settings.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise impossible(
                    f"{kind}.{key} ({value!r:.60}) must be text, a finite number, true, false, "
                    "null, or a list or group of these",
                    f"{kind}.{key}",
                ) from None


def _cache_has_one_size(experiment: "Experiment") -> None:
    cache = experiment.cache
    _one_of("cache.blocks", cache.blocks, "cache.gib", cache.gib)


def _host_pool_has_one_size(experiment: "Experiment") -> None:
    blocks, gib = experiment.host_pool
    if experiment.overflow.name != "swap" and blocks is None and gib is None:
        return  # it has no pool
    _one_of("overflow.host_blocks", blocks, "overflow.host_gib", gib)
    if not experiment.host_blocks:
        raise impossible(
            f"overflow.host_gib ({gib}) must hold at least one block of "
            f"{experiment.block_bytes:,} bytes",
            "overflow.host_gib",
        )


def _one_of(first: str, one: object, second: str, other: object) -> None:
    if (one is None) == (other is None):
        raise impossible(
            f"exactly one of {first} ({_shown(one)}) and {second} ({_shown(other)}) must be set",
            first,
            second,
        )


def _no_prefix_caching(experiment: "Experiment") -> None:
    if experiment.cache.prefix_caching:
        raise impossible(
            "cache.prefix_caching (true) must be false: with it, what a preempted request computes "
            f"again depends on what others left behind, and the cost of overflow="
            f"{experiment.overflow.name} cannot be told",
            "cache.prefix_caching",
        )


def _attention_suits_device(experiment: "Experiment") -> None:
    if experiment.engine.attention == "paged" and experiment.device.name != "cpu":
        raise impossible(
            "engine.attention (paged) runs on device cpu only; on "
            f"{experiment.device.name} it must be vllm or instrumented",
            "engine.attention",
            "device",
        )


def _attention_suits_dtype(experiment: "Experiment") -> None:
    own = experiment.engine.attention == "instrumented" and experiment.device.name == "cpu"
    if own and experiment.model.dtype not in INSTRUMENTED_DTYPES:
        raise impossible(
            f"model.dtype ({experiment.model.dtype}) must be {' or '.join(INSTRUMENTED_DTYPES)} "
            "with engine.attention=instrumented on device cpu",
            "model.dtype",
            "engine.attention",
        )


def _tracing_has_kernels(experiment: "Experiment") -> None:
    tracing, attention = experiment.tracing, experiment.engine.attention
    if tracing.name != "none" and attention != "instrumented":
        raise impossible(
            f"tracing={tracing.name} needs engine.attention=instrumented, the kernels that can "
            f"record KV events, not {attention}",
            "engine.attention",
            "tracing",
        )


def _strides_suit_tracing(experiment: "Experiment") -> None:
    tracing = experiment.tracing
    if tracing.name == "sampled":
        return
    for key in ("step_stride", "layer_stride", "head_stride"):
        stride = getattr(tracing, key)
        if stride != 1:
            raise impossible(
                f"tracing.{key} ({stride}) must be 1 with tracing={tracing.name}; to trace a part "
                "take tracing=sampled",
                f"tracing.{key}",
                "tracing",
            )


def _buffer_has_a_part_for_each(experiment: "Experiment") -> None:
    events, threads = experiment.tracing.buffer_events, experiment.device.threads
    if experiment.tracing.name != "none" and events < threads:
        raise impossible(
            f"tracing.buffer_events ({events}) must be at least device.threads ({threads}): each "
            "thread has a part of the buffer to itself",
            "tracing.buffer_events",
            "device.threads",
        )


def _layout_suits_attention(experiment: "Experiment") -> None:
    vllm_on_cpu = experiment.engine.attention == "vllm" and experiment.device.name == "cpu"
    if experiment.cache.layout == "by_block" and vllm_on_cpu:
        raise impossible(
            "cache.layout (by_block) needs engine.attention=paged on device cpu (or "
            "instrumented): vLLM's CPU "
            "kernels read each layer's blocks by_layer only",
            "cache.layout",
            "engine.attention",
        )


def _block_size_suits_device(experiment: "Experiment") -> None:
    device, size = experiment.device.name, experiment.cache.block_size
    multiple = BLOCK_MULTIPLE[device]
    if size % multiple and experiment.engine.attention == "vllm":
        other = ", or engine.attention paged, which takes any" if device == "cpu" else ""
        raise impossible(
            f"cache.block_size ({size}) must be a multiple of {multiple} for vLLM's attention "
            f"on device {device}{other}",
            "cache.block_size",
        )


def _head_size_suits_device(experiment: "Experiment") -> None:
    size = experiment.model.head_size
    vllm_on_cpu = experiment.device.name == "cpu" and experiment.engine.attention == "vllm"
    if vllm_on_cpu and size not in CPU_HEAD_SIZES:
        allowed = ", ".join(map(str, CPU_HEAD_SIZES))
        raise impossible(
            f"model.head_size ({size}) must be one of {allowed} for vLLM's attention on a CPU",
            "model.head_size",
        )


def _context_within_model(experiment: "Experiment") -> None:
    length, most = experiment.engine.max_model_len, experiment.model.max_position_embeddings
    if length > most:
        raise impossible(
            f"engine.max_model_len ({length}) must not exceed model.max_position_embeddings "
            f"({most} for {experiment.model.name})",
            "engine.max_model_len",
        )


def _one_request_fits_cache(experiment: "Experiment") -> None:
    length, room = experiment.engine.max_model_len, experiment.cache_tokens
    if room < length:
        raise impossible(
            f"the cache of {experiment.cache_blocks} blocks of {experiment.cache.block_size} "
            f"tokens ({room} tokens) must hold one request of engine.max_model_len ({length}), "
            "or vLLM does not start",
            "cache.blocks" if experiment.cache.blocks else "cache.gib",
            "engine.max_model_len",
        )


def _sequences_within_batch(experiment: "Experiment") -> None:
    engine = experiment.engine
    if engine.max_num_seqs > engine.max_num_batched_tokens:
        raise impossible(
            f"engine.max_num_seqs ({engine.max_num_seqs}) must not exceed "
            f"engine.max_num_batched_tokens ({engine.max_num_batched_tokens})",
            "engine.max_num_seqs",
            "engine.max_num_batched_tokens",
        )


def _chunk_within_batch(experiment: "Experiment") -> None:
    chunk_tokens, most = experiment.chunk_tokens, experiment.engine.max_num_batched_tokens
    if chunk_tokens is not None and chunk_tokens > most:
        raise impossible(
            f"batching.chunk_tokens ({chunk_tokens}) must not exceed "
            f"engine.max_num_batched_tokens ({most})",
            "batching.chunk_tokens",
            "engine.max_num_batched_tokens",
        )


def _whole_prompt_within_batch(experiment: "Experiment") -> None:
    engine = experiment.engine
    if experiment.batching.name in WHOLE_PROMPTS and (
        engine.max_num_batched_tokens < engine.max_model_len
    ):
        raise impossible(
            f"engine.max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least "
            f"engine.max_model_len ({engine.max_model_len}) with batching="
            f"{experiment.batching.name}, which computes a prompt whole",
            "engine.max_num_batched_tokens",
            "engine.max_model_len",
        )


def _lengths_in_order(experiment: "Experiment") -> None:
    workload = experiment.workload
    if workload.name in ("uniform", "zipf") and workload.min_tokens > workload.max_tokens:
        raise impossible(
            f"workload.min_tokens ({workload.min_tokens}) must not exceed workload.max_tokens "
            f"({workload.max_tokens})",
            "workload.min_tokens",
            "workload.max_tokens",
        )


def _longest(workload: Any) -> int:
    """The most tokens that a request may have, prompt and output together."""
    if workload.name == "fixed":
        return int(workload.prompt_tokens + workload.output_tokens)
    return int(workload.max_tokens)


def _requests_within_context(experiment: "Experiment") -> None:
    workload, most = experiment.workload, experiment.engine.max_model_len
    if workload.name == "trace":
        return  # its lengths are in a file: workload.requests.check reads it
    longest = _longest(workload)
    if workload.name == "fixed":
        what, keys = "workload.prompt_tokens + workload.output_tokens", ("workload.prompt_tokens",)
    else:
        what, keys = "workload.max_tokens", ("workload.max_tokens",)
    if longest > most:
        raise impossible(
            f"{what} ({longest}) must not exceed engine.max_model_len ({most})",
            *keys,
            "engine.max_model_len",
        )


def _requests_within_bounds(experiment: "Experiment") -> None:
    workload = experiment.workload
    if workload.name == "trace":
        return  # traces.requests adds up what the file holds
    longest = _longest(workload)
    most = workload.num_requests * longest
    if most > MAX_TOKENS:
        raise impossible(
            f"workload.num_requests ({workload.num_requests:,}) of up to {longest:,} tokens are "
            f"{most:,} tokens but must be at most {MAX_TOKENS:,} together",
            "workload.num_requests",
        )


def _tokenizer_has_a_hash(experiment: "Experiment") -> None:
    workload = experiment.workload
    if workload.name == "sharegpt" and (
        (workload.tokenizer is None) != (workload.tokenizer_sha256 is None)
    ):
        raise impossible(
            "workload.tokenizer and workload.tokenizer_sha256 must both be set, or neither",
            "workload.tokenizer_sha256",
        )


def _arrivals_have_times(experiment: "Experiment") -> None:
    workload = experiment.workload
    if workload.arrival == "trace" and workload.name != "trace":
        raise impossible(
            f"workload.arrival 'trace' needs workload=trace, since workload={workload.name} has "
            "no times of its own (choose all_at_once or poisson)",
            "workload.arrival",
        )
    if workload.arrival == "poisson" and workload.rate_per_s is None:
        raise impossible(
            "workload.rate_per_s must be set (requests a second) with workload.arrival=poisson",
            "workload.rate_per_s",
            "workload.arrival",
        )
    if workload.arrival != "poisson" and workload.rate_per_s is not None:
        raise impossible(
            f"workload.rate_per_s ({workload.rate_per_s}) has no meaning with workload.arrival="
            f"{workload.arrival}, only with poisson",
            "workload.rate_per_s",
            "workload.arrival",
        )


def _repeats_in_order(experiment: "Experiment") -> None:
    stopping = experiment.stopping
    if stopping.min > stopping.max:
        raise impossible(
            f"repeats.min ({stopping.min}) must not exceed repeats.max ({stopping.max})",
            "repeats.min",
            "repeats.max",
        )


def _shown(value: object) -> object:
    return "null" if value is None else value


RULES: tuple[Callable[["Experiment"], None], ...] = (
    _policies_exist,
    _settings_are_plain,
    _cache_has_one_size,
    _host_pool_has_one_size,
    _no_prefix_caching,
    _attention_suits_device,
    _attention_suits_dtype,
    _tracing_has_kernels,
    _strides_suit_tracing,
    _buffer_has_a_part_for_each,
    _layout_suits_attention,
    _block_size_suits_device,
    _head_size_suits_device,
    _context_within_model,
    _one_request_fits_cache,
    _sequences_within_batch,
    _chunk_within_batch,
    _whole_prompt_within_batch,
    _lengths_in_order,
    _requests_within_context,
    _requests_within_bounds,
    _tokenizer_has_a_hash,
    _arrivals_have_times,
    _repeats_in_order,
)
