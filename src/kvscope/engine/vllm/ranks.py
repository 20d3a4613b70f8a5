"""The ranks of a server in one process, one after the other, without weights.

A rank's process groups have all of their members by number, and exchange nothing. All ranks of a
pipeline stage have layers of the same sizes, so that one of each stage stands for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import VllmConfig, replace, set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    ensure_model_parallel_initialized,
    init_distributed_environment,
    parallel_state,
)
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVCacheSpec

from kvscope.engine.vllm.without_worker import built, kept_by_layers

WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")  # methods of speculative decoding
DIVIDED = (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)
FAKE = "fake"  # PyTorch's process group that exchanges nothing


@dataclass(frozen=True)
class Stage:
    """A rank of a pipeline stage: models without storage, and KV cache specs of their layers."""

    models: tuple[torch.nn.Module, ...]
    specs: dict[str, KVCacheSpec]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of one rank as they are loaded, with the tables of positions."""
        kept = {id(p): p for m in self.models for p in (*m.parameters(), *m.buffers())}
        return sum(p.numel() * p.element_size() for p in kept.values())

    def share(self, tensor_ranks: int) -> float:
        """The share of a stage's weights that one of its ranks has: some, as of norms, all have."""
        here = whole = 0
        for module in (module for model in self.models for module in model.modules()):
            divided = isinstance(module, DIVIDED) or hasattr(module, "global_num_experts")
            for parameter in module.parameters(recurse=False):
                size = parameter.numel() * parameter.element_size()
                here += size
                whole += size * (tensor_ranks if divided else 1)
        return here / max(1, whole)

    @property
    def encoder_bytes(self) -> int:
        """Bytes of the weights for images and sound among them."""
        encoders = (part for model in self.models for part in encoders_of(model).values())
        kept = {id(p): p for part in encoders for p in (*part.parameters(), *part.buffers())}
        return sum(p.numel() * p.element_size() for p in kept.values())


def encoders_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The parts of a model for images and sound, by their names, as vLLM marks them."""
    names = getattr(model, "_tower_model_names", None) or ()
    return {name: model.get_submodule(name) for name in names}


def stages(config: VllmConfig, encoders: bool = False) -> list[Stage]:
    """The pipeline stages of a server, each with its draft model; sets the platform's block size.

    The configuration then has the layers of all stages. `encoders` builds also the parts for images
    and sound that a configuration for text leaves out, where vLLM can build them.
    """
    parallel = config.parallel_config
    every: dict[str, Any] = {}
    made = []
    for number in range(parallel.pipeline_parallel_size):
        context = config.compilation_config.static_forward_context
        context.clear()
        _join(config, number * parallel.tensor_parallel_size)
        models = tuple(_models(config, encoders))
        current_platform.update_block_size_for_backend(config)
        made.append(Stage(models, kept_by_layers(config)))
        every |= context
    config.compilation_config.static_forward_context.update(every)
    return made


def _models(config: VllmConfig, encoders: bool) -> list[torch.nn.Module]:
    """The model, and the draft model of speculative decoding if it has layers of its own."""
    drafts = config.speculative_config
    own = drafts.draft_model_config if drafts and drafts.method not in WITHOUT_MODEL else None
    models = [(encoders and _with_encoders(config)) or built(config)]
    if own is not None and own is not config.model_config:
        models.append(built(_draft_config(config), own))
    return models


def _with_encoders(config: VllmConfig) -> torch.nn.Module | None:
    """The model with its parts for images and sound; None where vLLM cannot build these."""
    parts: Any = config.model_config.multimodal_config
    if parts is None:
        return None
    parts.language_model_only = False
    try:
        return built(config)
    # Encoders raise whatever comes of a config.json that lacks their sizes.
    except Exception:
        config.compilation_config.static_forward_context.clear()
        return None
    finally:
        parts.language_model_only = True


def _draft_config(config: VllmConfig) -> VllmConfig:
    """The configuration of a draft model, whose layers join those of the server."""
    drafts: Any = config.speculative_config
    if drafts.method != "draft_model":
        return config
    parallel = replace(drafts.draft_parallel_config, rank=config.parallel_config.rank)
    return replace(
        config, quant_config=None, parallel_config=parallel, model_config=drafts.draft_model_config
    )


def _join(config: VllmConfig, rank: int) -> None:
    """Make this process a rank of the server's world."""
    parallel = config.parallel_config
    if dist.is_initialized():
        cleanup_dist_env_and_memory()
    parallel.rank = rank
    with _alone(), set_current_vllm_config(config):
        init_distributed_environment(parallel.world_size, rank, "fake://", 0, FAKE)
        ensure_model_parallel_initialized(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.decode_context_parallel_size,
        )


class _alone:
    """Within it, process groups are made without the other ranks."""

    def __enter__(self) -> None:
        start, group = dist.init_process_group, dist.new_group
        coordinate: Callable[..., Any] = parallel_state.init_model_parallel_group
        self._before = (start, group, coordinate)

        def init_process_group(*_: Any, world_size: int, rank: int, **__: Any) -> None:
            start(FAKE, store=FakeStore(), world_size=world_size, rank=rank)

        def new_group(ranks: Any = None, **_: Any) -> Any:
            return group(ranks, backend=FAKE)

        def init_model_parallel_group(*args: Any, **given: Any) -> Any:
            links = {"use_message_queue_broadcaster": False, "use_device_communicator": False}
            return coordinate(*args, **given | links)

        self._put(init_process_group, new_group, init_model_parallel_group)

    def __exit__(self, *_: object) -> None:
        self._put(*self._before)

    @staticmethod
    def _put(start: Any, group: Any, coordinate: Any) -> None:
        dist.init_process_group, dist.new_group = start, group
        parallel_state.init_model_parallel_group = coordinate
