"""Facts of a recorded server: versions, settings and sizes, as plain values."""

import secrets
import time
from dataclasses import asdict
from typing import Any

from kvscope.api.machine import __version__
from kvscope.api.words import time_sources
from kvscope_record.counts import settings_of


def facts_of(scheduler: Any, vllm_version: str) -> dict[str, Any]:
    """The facts of a recording of a scheduler of vLLM."""
    # Imported here because vLLM loads plugins while it is being imported itself.
    from kvscope.api.vllm_facts import groups_of

    groups = groups_of(scheduler.kv_cache_config)
    config = scheduler.vllm_config
    scheduling, cache, model = config.scheduler_config, config.cache_config, config.model_config
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    pool = scheduler.kv_cache_manager.block_pool
    return {
        "recording": secrets.token_hex(6),
        "utc_offset_s": time.localtime().tm_gmtoff,
        "kvscope": __version__,
        "vllm": vllm_version,
        "scheduler": f"{type(scheduler).__module__}.{type(scheduler).__name__}",
        "block_size": scheduler.block_size,
        "hash_block_size": pool.hash_block_size,
        "kv_blocks_total": pool.num_gpu_blocks - 1,  # one is vLLM's own
        "kv_groups": [asdict(group) for group in groups],
        "prefix_caching": bool(cache.enable_prefix_caching),
        "async_scheduling": bool(scheduling.async_scheduling),
        "chunked_prefill": bool(scheduling.enable_chunked_prefill),
        "policy": scheduling.policy,
        "max_num_seqs": scheduling.max_num_seqs,
        "max_num_batched_tokens": scheduling.max_num_batched_tokens,
        "max_model_len": model.max_model_len,
        "watermark": getattr(scheduling, "watermark", None),
        **settings_of(config),
        "connector": None if transfer is None else transfer.kv_connector,
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "data_parallel_rank": parallel.data_parallel_index,
        "device": config.device_config.device_type,
        "time_source": _time_source(),
        "model": _model(model),
    }


def _time_source() -> str:
    """Rehearsed where another's platform is in the place of vLLM's for CUDA, else measured."""
    from kvscope.api.vllm_facts import platforms

    another = platforms.is_cuda() and not platforms.is_vllms()
    return time_sources.REHEARSED if another else time_sources.MEASURED


def _model(model: Any) -> dict[str, Any]:
    """The numbers that size a model, and its architecture's name; no path and no name of it."""
    text = model.hf_text_config
    names = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"),
        *("model_type", "tie_word_embeddings"),
    )
    values = {name: getattr(text, name, None) for name in names}
    plain = {name: value for name, value in values.items() if isinstance(value, int | str)}
    return plain | {
        "architectures": list(model.architectures),
        "dtype": str(model.dtype).removeprefix("torch."),
    }
