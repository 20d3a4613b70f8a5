"""vLLM's own plan of the KV cache of a model, without weights and without the device's memory.

vLLM's engine core starts as it does in a server, with an executor that has the model's layers
without weights, and a stated amount of memory. Its scheduler then says what a request holds.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.utils import (
    AttentionGroup,
    prepare_kernel_block_sizes,
)

from kvscope.base.errors import BadInput
from kvscope.engine.vllm import model_types
from kvscope.engine.vllm.arguments import engine_args
from kvscope.engine.vllm.kv_groups import groups_of
from kvscope.engine.vllm.ranks import Stage, encoders_of, stages
from kvscope.engine.vllm.reasons import reason
from kvscope.engine.vllm.without_worker import WithoutWorker, attention_layers
from kvscope.tables.kv_bytes import AttentionLayers, HeldBlocks, KvPlan, RankPlan

TOO_LITTLE = "Try increasing `gpu_memory_utilization`"
"""Words of vLLM's errors of too little memory."""

MOST_BLOCKS = 10_000_000
"""vLLM's scheduler has an object for each block: of so many they take a gigabyte or two."""

NOT_IMPORTED = "failed to be inspected"
"""Words of vLLM's error for a model whose code it cannot import."""


model_types.ask_no_processor()


class NoRoom(BadInput):
    """The KV cache does not hold one request as long as the server allows: it does not start."""


Memory = Callable[[VllmConfig, Sequence[Stage]], list[int]]
"""Bytes of the KV cache of a rank of each pipeline stage."""


class NoCache(Exception):
    """No layer keeps anything for later tokens."""


class PlanningExecutor(WithoutWorker):
    """An executor with a model that has no storage; `memory` says what its KV cache has.

    `encoders`: the model has its parts for images and sound, though the plan is for text.
    """

    memory: ClassVar[Memory]
    encoders: ClassVar[bool]
    refused: str | None = None  # why no backend of this platform takes such blocks

    def _init_executor(self) -> None:
        self.stages = stages(self.vllm_config, self.encoders)
        self.memory_bytes: list[int] = []
        self.caches: list[KVCacheConfig] = []

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """vLLM's specs of what the layers of each stage keep; NoCache if none keeps anything."""
        if not any(stage.specs for stage in self.stages):
            raise NoCache
        return [stage.specs for stage in self.stages]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """The KV cache layouts of the attention backends of this platform."""
        backends = get_current_attn_backends(self.vllm_config)
        return [[layout.name for layout in get_supported_kv_cache_layouts(backends)]]

    def determine_available_memory(self) -> list[int]:
        """The memory that was stated."""
        self.memory_bytes = type(self).memory(self.vllm_config, self.stages)
        return self.memory_bytes

    def initialize_from_config(self, kv_cache_configs: list[KVCacheConfig]) -> None:
        """Check the plan without allocating; ValueError for too many blocks to plan."""
        self.caches = kv_cache_configs
        for cache in kv_cache_configs:
            if cache.num_blocks > MOST_BLOCKS:
                raise ValueError(
                    f"it has {cache.num_blocks:,} blocks, but at most {MOST_BLOCKS:,} can be "
                    "planned; give less --memory"
                )
            try:
                prepare_kernel_block_sizes(cache, _by_backend(self.vllm_config, cache))
            except ValueError as error:
                self.refused = reason(error)

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Compute nothing: only the scheduler is asked."""
        future: Future[None] = Future()
        future.set_result(None)
        return future if non_block else None


def _by_backend(config: VllmConfig, cache: KVCacheConfig) -> list[list[AttentionGroup]]:
    """Attention backends of each KV group, with what they keep."""
    layers, groups = dict(attention_layers(config)), []
    for number, group in enumerate(cache.kv_cache_groups):
        spec, names = group.kv_cache_spec, group.layer_names
        specs = getattr(spec, "kv_cache_specs", dict.fromkeys(names, spec))
        pairs = dict.fromkeys((layers[name].get_attn_backend(), specs[name]) for name in names)
        groups.append([AttentionGroup(backend, [], spec_, number) for backend, spec_ in pairs])
    return groups


def stated(memory_bytes: int) -> Memory:
    """The memory that each rank's KV cache has, where it is known."""
    return lambda _, stages: [memory_bytes] * len(stages)


def plan(
    directory: Path,
    name: str,
    memory: Memory,
    lengths: Iterable[int],
    arguments: Sequence[str],
    encoders: bool = False,
) -> KvPlan:
    """vLLM's plan for the model whose config.json is in `directory`.

    `arguments` are those of `vllm serve`. With `encoders`, weights are also those of the parts that
    `--language-model-only` leaves out. BadInput if vLLM refuses the arguments or the model, NoRoom
    if the memory is too little.
    """
    config = _engine_config(directory, name, arguments)
    members = {"memory": staticmethod(memory), "encoders": encoders}
    executor = type("PlanningExecutor", (PlanningExecutor,), members)
    try:
        core = EngineCore(config, executor, log_stats=False)
    except NoCache:
        raise BadInput(
            f"{name}: it has no KV cache, as vLLM plans it: its layers keep nothing for later"
        ) from None
    # vLLM's models raise whatever comes of a config.json that lacks a value, or has a wrong one.
    except Exception as error:
        if TOO_LITTLE in str(error):
            raise NoRoom(reason(error).replace("), (", "), ")) from error
        raise BadInput(f"{name}: vLLM cannot plan its KV cache: {reason(error)}") from error
    cache: KVCacheConfig = core.scheduler.kv_cache_config
    tokens, requests = get_kv_cache_capacity(config, cache)
    layers = dict(attention_layers(config))
    made: PlanningExecutor = core.model_executor
    return KvPlan(
        model=name,
        platform=str(current_platform.device_name),
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        kv_cache_dtype=str(config.cache_config.cache_dtype),
        max_num_seqs=config.scheduler_config.max_num_seqs,
        memory_bytes=min(made.memory_bytes),
        ranks=tuple(_ranks(made)),
        blocks=cache.num_blocks,
        capacity_tokens=tokens,
        max_concurrency=requests,
        groups=groups_of(cache),
        longest=tuple(_longest(config, group.kv_cache_spec) for group in cache.kv_cache_groups),
        held=tuple(_held(core, length, number) for number, length in enumerate(lengths)),
        weights=sum(_weights(model) for stage in made.stages for model in stage.models),
        attention=tuple(_pairs(layer) for layer in layers.values()),
        refused=made.refused or _too_few_states(config, cache),
    )


def _ranks(made: PlanningExecutor) -> Iterator[RankPlan]:
    """The plan of a rank of each pipeline stage."""
    for stage, memory_bytes, cache in zip(made.stages, made.memory_bytes, made.caches, strict=True):
        layers = sum(len(group.layer_names) for group in cache.kv_cache_groups)
        yield RankPlan(layers, stage.weight_bytes, memory_bytes, cache.num_blocks)


def _longest(config: VllmConfig, spec: KVCacheSpec) -> int:
    """Blocks of a group that vLLM counts for a request as long as the server allows."""
    return -int(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)


def _too_few_states(config: VllmConfig, cache: KVCacheConfig) -> str | None:
    """Why vLLM does not capture its CUDA graphs: each request of a pass needs a state's block."""
    most = config.scheduler_config.max_num_seqs
    graphs = config.compilation_config.cudagraph_mode
    if not (graphs and graphs.has_full_cudagraphs() and cache.has_mamba_layers):
        return None
    if most <= cache.num_blocks:
        return None
    return (
        f"max_num_seqs ({most:,}) exceeds the {cache.num_blocks:,} blocks that hold a state; give "
        f"max_num_seqs={cache.num_blocks} or less"
    )


def _engine_config(directory: Path, name: str, arguments: Sequence[str]) -> VllmConfig:
    """vLLM's configuration for the arguments of its server."""
    try:
        model_types.register(json.loads((directory / "config.json").read_text("utf-8")))
        made = engine_args(arguments, directory)
        return made.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except BadInput:
        raise
    # Of arguments that exclude each other, an unknown model, a feature that the platform lacks, and
    # whatever Transformers raises of a value.
    except Exception as error:
        why = (NOT_IMPORTED in str(error) and _not_importable(directory)) or reason(error)
        raise BadInput(f"{name}: vLLM refuses it: {why}") from error


def _not_importable(directory: Path) -> str | None:
    """Why vLLM cannot import its code of the model, which it tries elsewhere and does not say."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    for architecture in config.get("architectures") or ():
        try:
            if model := ModelRegistry.models.get(architecture):
                model.load_model_cls()
        except ImportError as error:
            return f"its code of {architecture} cannot be imported: {reason(error)}"
    return None


def _held(core: EngineCore, length: int, number: int) -> HeldBlocks | None:
    """Blocks that vLLM's scheduler gives a request of so many tokens; None if it cannot run.

    All but the newest token are its prompt. One as long as the server allows ends before its newest
    token is computed, and is taken without it.
    """
    scheduler = core.scheduler
    if length > scheduler.max_model_len:
        return None
    prompt_tokens = max(1, min(length, scheduler.max_model_len - 1) - 1)
    request = Request(
        request_id=f"planned-{number}",
        prompt_token_ids=[1 + (number + token) % 7 for token in range(prompt_tokens)],
        sampling_params=SamplingParams(max_tokens=2, ignore_eos=True),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
    )
    scheduler.add_request(request)
    most = tuple(0 for _ in core.scheduler.kv_cache_config.kv_cache_groups)
    try:
        while True:
            output = scheduler.schedule()
            if request.request_id not in output.num_scheduled_tokens:
                return None
            blocks = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            now = tuple(sum(not block.is_null for block in group) for group in blocks)
            most = tuple(map(max, most, now))
            computed = request.num_computed_tokens >= prompt_tokens
            if computed and request.num_output_tokens:
                return HeldBlocks(length, now, most)
            scheduler.update_from_output(output, _answer(request.request_id, computed))
    finally:
        scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        scheduler.schedule()
        scheduler.reset_prefix_cache()


def _answer(request_id: str, computed: bool) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        req_ids=[request_id],
        req_id_to_index={request_id: 0},
        sampled_token_ids=[[1]] if computed else [[]],
    )


def _weights(model: torch.nn.Module) -> int:
    """Weights that each token is multiplied with; of experts, only those that a token takes.

    Their number is that of the layer's shape, since quantized weights are packed.
    """
    encoders = {part for whole in encoders_of(model).values() for part in whole.modules()}
    return sum(_weights_of(part) for part in model.modules() if part not in encoders)


def _weights_of(module: torch.nn.Module) -> int:
    """Weights of a module without its parts."""
    name = type(module).__name__
    if "Embedding" in name or "LMHead" in name:
        return 0
    if isinstance(module, LinearBase):
        rows = getattr(module, "input_size_per_partition", module.input_size)
        columns = getattr(module, "output_size_per_partition", module.output_size)
        bias = getattr(module, "bias", None)
        return int(rows * columns) + (0 if bias is None else bias.numel())
    count = sum(parameter.numel() for parameter in module.parameters(recurse=False))
    experts = getattr(module, "global_num_experts", 0) or getattr(module, "num_experts", 0)
    taken = getattr(module, "top_k", 0)
    if not (experts and taken and count):
        return int(count)
    hidden = getattr(module, "hidden_size", None)
    inner = getattr(module, "intermediate_size_per_partition", None)
    if not (isinstance(hidden, int) and isinstance(inner, int)):
        return int(count * taken // experts)
    gated = getattr(getattr(module, "moe_config", None), "is_act_and_mul", True)
    return int(taken * (3 if gated else 2) * hidden * inner)


def _pairs(layer: Any) -> AttentionLayers:
    """Elements that a layer multiplies for a pair of tokens; nothing where it keeps a state."""
    if not isinstance(getattr(layer, "num_heads", None), int) or not hasattr(layer, "head_size"):
        return AttentionLayers(0)
    heads = layer.num_heads
    if hasattr(layer, "kv_lora_rank"):
        size = layer.qk_nope_head_dim + layer.qk_rope_head_dim + layer.v_head_dim
    else:
        size = 2 * layer.head_size
    return AttentionLayers(
        2 * heads * size,
        getattr(layer, "sliding_window", None),
        getattr(layer, "attention_chunk_size", None),
    )
