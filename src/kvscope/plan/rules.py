"""Checks of combinations of values that cannot work, made before anything runs."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from kvscope.base.setting_values import VLLM_0_4_2
from kvscope.plan import registry
from kvscope.plan.fields import impossible
from kvscope.plan.models import Model
from kvscope.plan.parts import CacheSettings, Conditions, TracingSettings
from kvscope.plan.tracers import INSTRUMENTED, PACKAGE, is_installed
from kvscope.tables.kv_plan import unless_one_block_table

SIZES = CacheSettings.one_of


class CompleteExperiment(Conditions, Protocol):
    """The view of an experiment that rules get."""

    @property
    def model(self) -> Model:
        """The model of the experiment."""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Its parts by name."""


def check(experiment: CompleteExperiment) -> None:
    """Raise pydantic's error for the first rule that is broken."""
    for rule in RULES:
        rule(experiment)


def _options_are_plain(experiment: CompleteExperiment) -> None:
    """An id hashes JSON, so all settings of an option must be representable in JSON."""
    for kind in registry.KINDS:
        for key, value in getattr(experiment, kind):
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise impossible(
                    f"{kind}.{key} ({value!r:.60}) must be text, a finite number, true, false, "
                    "null, or a list or group of these",
                    f"{kind}.{key}",
                ) from None


def _exactly_one_is_set(experiment: CompleteExperiment) -> None:
    for name, part in experiment:
        keys = getattr(part, "one_of", ())
        chosen = {key for key in keys if getattr(part, key) is not None}
        filled = {part.fills_in[key] for key in chosen if key in part.fills_in}
        if keys and not (len(chosen - filled) == 1 and filled <= chosen):
            values = (f"{name}.{key} ({_or_null(getattr(part, key))})" for key in keys)
            raise impossible(
                f"exactly one of {' and '.join(values)} must be set",
                *(f"{name}.{k}" for k in keys),
            )


def _options_work(experiment: CompleteExperiment) -> None:
    for kind in registry.KINDS:
        getattr(experiment, kind).check(experiment)


def _device_caches_prefixes(experiment: CompleteExperiment) -> None:
    device = experiment.device
    if experiment.cache.prefix_caching and not device.caches_prefixes:
        raise impossible(
            f"cache.prefix_caching (true) must be false with device={device.name}, whose engine "
            "has no prefix cache",
            "cache.prefix_caching",
            "device",
        )


def _prefixes_have_one_block_table(experiment: CompleteExperiment) -> None:
    wrong = unless_one_block_table(experiment.kv_groups, "cache.prefix_caching=true")
    if experiment.cache.prefix_caching and wrong:
        raise impossible(wrong, "cache.prefix_caching", "model")


def _policy_takes_kv_groups(experiment: CompleteExperiment) -> None:
    if wrong := experiment.overflow.refusal(experiment.kv_groups):
        raise impossible(wrong, "overflow", "model")


def _tracing_has_kernels(experiment: CompleteExperiment) -> None:
    tracing, attention = experiment.tracing, experiment.engine.attention
    if tracing.name != "none" and attention != INSTRUMENTED:
        raise impossible(
            f"tracing={tracing.name} needs engine.attention=instrumented, the kernels that can "
            f"record KV events, not {attention:.60}",
            "engine.attention",
            "tracing",
        )


def _tracing_is_installed(experiment: CompleteExperiment) -> None:
    name, attention = experiment.tracing.name, experiment.engine.attention
    setting = f"tracing={name}" if name != "none" else f"engine.attention={attention}"
    required = name != "none" or (attention == INSTRUMENTED and experiment.device.allocates)
    if required and not is_installed():
        raise impossible(
            f"{setting} needs the package {PACKAGE}, whose attention kernels can record KV events; "
            "install it, or take tracing=none and another engine.attention",
            "tracing" if name != "none" else "engine.attention",
        )


def _strides_suit_tracing(experiment: CompleteExperiment) -> None:
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


def _buffer_has_a_part_for_each(experiment: CompleteExperiment) -> None:
    events, threads = experiment.tracing.buffer_events, experiment.device.threads
    if experiment.tracing.name != "none" and events < threads:
        raise impossible(
            f"tracing.buffer_events ({events}) must be at least device.threads ({threads}): the "
            "buffer is divided among the threads",
            "tracing.buffer_events",
            "device.threads",
        )


def _buffer_is_used(experiment: CompleteExperiment) -> None:
    events, usual = experiment.tracing.buffer_events, TracingSettings(name="none").buffer_events
    if experiment.tracing.name == "none" and events != usual:
        raise impossible(
            f"tracing.buffer_events ({events}) has no meaning with tracing=none, only with full or "
            "sampled",
            "tracing.buffer_events",
            "tracing",
        )


def _reserving_matters(experiment: CompleteExperiment) -> None:
    """`false` is refused where it admits what `true` admits."""
    if experiment.engine.scheduler_reserve_full_isl:
        return
    batching, overflow = experiment.batching, experiment.overflow
    if experiment.cache.admission == VLLM_0_4_2:
        key, why = "cache.admission", f"={VLLM_0_4_2}, which gives a prompt all its blocks at once"
    elif batching.name in ("mixed", "prefill_first") and overflow.resumes_at_once:
        key, why = "batching", f"={batching.name}, whose first chunk is the whole prompt"
    else:
        return
    raise impossible(
        f"engine.scheduler_reserve_full_isl (false) must be true with {key}{why}: both are the "
        "same",
        "engine.scheduler_reserve_full_isl",
        key,
    )


def _context_within_model(experiment: CompleteExperiment) -> None:
    length, most = experiment.engine.max_model_len, experiment.model.max_position_embeddings
    if length > most:
        raise impossible(
            f"engine.max_model_len ({length}) must not exceed model.max_position_embeddings "
            f"({most} for {experiment.model.name})",
            "engine.max_model_len",
        )


def _other_families_have_vllms_kernels(experiment: CompleteExperiment) -> None:
    model, attention = experiment.model, experiment.engine.attention
    if model.family == "hf" and attention != "vllm":
        raise impossible(
            f"engine.attention ({attention}) must be vllm with model={model.name}: kvscope's own "
            "kernels, which record KV events, are those of Llama and OPT",
            "engine.attention",
            "model.family",
        )


def _fp8_has_vllms_kernels(experiment: CompleteExperiment) -> None:
    attention, dtype = experiment.engine.attention, experiment.cache.dtype
    if dtype != "auto" and attention != "vllm":
        raise impossible(
            f"cache.dtype ({dtype}) must be auto with engine.attention={attention}, whose kernels "
            "keep K and V in the model's number type",
            "cache.dtype",
            "engine.attention",
        )


def _states_fit_blocks(experiment: CompleteExperiment) -> None:
    """A state takes one block in vLLM, which pads it to those of attention beside it."""
    model, cache = experiment.model, experiment.cache
    state = max(layers.state_bytes for layers in model.kept)
    token = max(layers.token_elements for layers in model.kept) * experiment.kv_width
    if state > cache.block_size * token:
        raise impossible(
            f"cache.block_size ({cache.block_size}) must be at least {-(-state // token)} with "
            f"model={model.name}, so that a state of {state:,} bytes fits beside {token:,} bytes "
            "a token",
            "cache.block_size",
            "model.kv_layers",
        )


def _one_request_fits_cache(experiment: CompleteExperiment) -> None:
    length, room = experiment.engine.max_model_len, experiment.cache_tokens
    if experiment.model.keeps_all and room < length:
        raise impossible(
            f"the cache of {experiment.cache_blocks} blocks of {experiment.cache.block_size} "
            f"tokens ({room} tokens) must hold one request of engine.max_model_len ({length}), "
            "or vLLM does not start",
            _size_key(experiment),
            "engine.max_model_len",
        )


def _one_request_fits_kv_groups(experiment: CompleteExperiment) -> None:
    blocks, required = experiment.cache_blocks, experiment.request_blocks
    if not experiment.model.keeps_all and blocks < required:
        raise impossible(
            f"the cache of {blocks} blocks must hold one request of engine.max_model_len "
            f"({experiment.engine.max_model_len}), which takes up to {required} in the KV groups "
            f"of model={experiment.model.name}, or vLLM does not start",
            _size_key(experiment),
            "engine.max_model_len",
        )


def _size_key(experiment: CompleteExperiment) -> str:
    """The key that sizes the cache."""
    keys = (key for key in reversed(SIZES) if getattr(experiment.cache, key) is not None)
    return f"cache.{next(keys)}"


def _sequences_within_batch(experiment: CompleteExperiment) -> None:
    engine = experiment.engine
    if engine.max_num_seqs > engine.max_num_batched_tokens:
        raise impossible(
            f"engine.max_num_seqs ({engine.max_num_seqs}) must not exceed "
            f"engine.max_num_batched_tokens ({engine.max_num_batched_tokens})",
            "engine.max_num_seqs",
            "engine.max_num_batched_tokens",
        )


def _or_null(value: object) -> object:
    return "null" if value is None else value


RULES: tuple[Callable[[CompleteExperiment], None], ...] = (
    _options_are_plain,
    _exactly_one_is_set,
    _device_caches_prefixes,
    _prefixes_have_one_block_table,
    _policy_takes_kv_groups,
    _tracing_has_kernels,
    _tracing_is_installed,
    _strides_suit_tracing,
    _buffer_has_a_part_for_each,
    _buffer_is_used,
    _reserving_matters,
    _context_within_model,
    _other_families_have_vllms_kernels,
    _fp8_has_vllms_kernels,
    _states_fit_blocks,
    _one_request_fits_cache,
    _one_request_fits_kv_groups,
    _sequences_within_batch,
    _options_work,
)
