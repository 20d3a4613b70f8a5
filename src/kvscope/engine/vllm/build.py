"""Builds the vLLM engine of an experiment, without a tokenizer, downloads or a network."""

import gc
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.setting_values import VLLM_0_4_2
from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.engine.checks import Comparisons
from kvscope.engine.layers import LayerTimer
from kvscope.engine.marks import Marks
from kvscope.engine.overflow.policy import OverflowPolicy
from kvscope.engine.overflow.victims import rank_of
from kvscope.engine.port import Finished
from kvscope.engine.recording import Recording
from kvscope.engine.vllm import outputs
from kvscope.engine.vllm.admission import admit_as_0_4_2
from kvscope.engine.vllm.attention.selection import (
    check_layout,
    find_own_attention,
    select_attention,
)
from kvscope.engine.vllm.connectors.worker import worker_tier
from kvscope.engine.vllm.run_recorder import RunRecorder
from kvscope.engine.vllm.scheduler import PolicyScheduler
from kvscope.engine.vllm.weights import LOAD_FORMAT
from kvscope.plan.experiment import Experiment
from kvscope.plan.option import Option
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_kinds import by_vllm_name
from kvscope.tables.kv_plan import keeps_state

if TYPE_CHECKING:
    from kvscope.engine.devices.platform import Platform
    from kvscope.plan.tracing import PassTracer

Policy = TypeVar("Policy", BatchingPolicy, OverflowPolicy)


@dataclass
class VllmEngine:
    """A running vLLM engine (`engine.port.Engine`), and the parts of it that are observed."""

    llm: Any
    platform: "Platform"
    scheduler: PolicyScheduler
    recorder: RunRecorder
    timer: LayerTimer | None
    layers: int
    tracer: "PassTracer | None" = None
    attention: list[Any] = field(default_factory=list)  # kvscope's attention of each layer, if any

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV groups that vLLM has made of the layers."""
        return self.scheduler.kv_groups

    @property
    def kv_blocks_total(self) -> int:
        """Blocks of the KV cache that requests can use."""
        return self.scheduler.kv_blocks_total

    @property
    def kv_blocks_used(self) -> int:
        """Blocks of the KV cache that requests hold now."""
        return self.scheduler.kv_blocks_used

    @property
    def host_blocks_total(self) -> int:
        """Blocks of the host pool; 0 without one."""
        return self.scheduler.tier.host_blocks_total

    @property
    def host_blocks_used(self) -> int:
        """Blocks of the host pool that requests hold now."""
        return self.scheduler.tier.host_blocks_held

    @property
    def host_pool(self) -> dict[str, Any]:
        """The entries of run.json on the host pool: blocks, kind of memory, pieces of a block."""
        facts: dict[str, Any] = self.scheduler.tier.pool_facts
        if not self.platform.experiment.device.allocates:
            return facts | self.platform.host_pool()
        worker = worker_tier()
        return facts | {"host_memory": worker.host_memory, "pieces_per_block": worker.pieces}

    @contextmanager
    def check_results(self) -> Iterator[dict[str, Comparisons]]:
        """Within the context, compare attention outputs and swapped blocks with a reference.

        This takes time, so nothing is measured meanwhile. Yields the comparisons by their keys in
        run.json.
        """
        from kvscope.engine.attention.reference import ReferenceChecks
        from kvscope.engine.overflow.contents import SwapChecks

        if self.timer is None:
            yield {}
            return
        outputs = ReferenceChecks()
        caches = worker_tier().layers
        swaps = SwapChecks(caches, self.scheduler.blocks_of)
        watched = [self.scheduler.tier] if caches else []
        hook = self.timer.before_layers(
            lambda: swaps.compare_resumed(self.recorder.observer.under_way)
        )
        checkable = [layer for layer in self.attention if hasattr(layer, "gathered")]
        for layer in checkable:
            layer.checks = outputs
        for tier in watched:
            tier.checks = swaps
        try:
            yield {"reference_checks": outputs, "swap_checks": swaps}
        finally:
            hook.remove()
            for part in (*checkable, *watched):
                part.checks = None

    def empty_prefix_cache(self) -> dict[str, Any] | None:
        """Empty the prefix cache; returns how, and the blocks still in it; None without one."""
        cache = self.scheduler.prefix_cache
        if cache is None:
            return None
        if not cache.empty():
            raise KvscopeError(
                f"the prefix cache cannot be emptied: {self.kv_blocks_used} blocks are in use"
            )
        return {"emptied_by": "reset_prefix_cache", "cached_blocks": cache.blocks}

    def begin(self, recording: Recording, marks: Marks) -> None:
        """Record into `recording` from now on; its passes are numbered from 0."""
        self.recorder.begin(recording, marks)

    @property
    def passes(self) -> int:
        """Passes since `begin`."""
        return self.recorder.observer.step

    def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        output_tokens: int,
        output_token_ids: list[int] | None = None,
    ) -> None:
        """Give vLLM a request, to be answered greedily, or with the tokens that it is given."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.vllm.add_request(
            request_id,
            {"prompt_token_ids": prompt_token_ids},
            SamplingParams(
                max_tokens=output_tokens,
                temperature=0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                extra_args=outputs.extra_args(request_id, output_token_ids),
            ),
        )

    def has_unfinished_requests(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.vllm.has_unfinished_requests())

    def settle(self) -> None:
        """Compute empty passes until vLLM's offloading has ended its copies."""
        while self.scheduler.has_requests():
            self.vllm.step()

    def step(self) -> list[Finished]:
        """Compute one pass; returns the requests that end with it."""
        from kvscope.engine.vllm.forcing import take_choices

        return [
            Finished(
                output.request_id,
                output.outputs[0].token_ids,
                self.recorder.recording.passes[-1].end_ns,
                take_choices(output.request_id),
            )
            for output in self.vllm.step()
            if output.finished
        ]

    def abort(self, request_ids: list[str]) -> None:
        """End requests before their last token, whether they run, wait or are preempted."""
        self.vllm.abort_request(request_ids)

    @property
    def vllm(self) -> Any:
        """vLLM's `LLMEngine`."""
        return self.llm.llm_engine


def check_groups(groups: Sequence[KvGroup], experiment: Experiment) -> None:
    """Raise BadInput for KV groups that a run of this experiment cannot be recorded with."""
    model, cache = experiment.model.name, experiment.cache
    for group in groups:
        if group.kind not in by_vllm_name():
            raise BadInput(
                f"model={model} has a KV group of {group.kind}, of which kvscope does not know "
                f"what a request holds; it knows {', '.join(by_vllm_name())}"
            )
    sizes = {group.block_tokens for group in groups if not keeps_state(group)}
    if sizes - {cache.block_size}:
        raise BadInput(
            f"cache.block_size is {cache.block_size}, but vLLM takes blocks of "
            f"{' and '.join(map(str, sorted(sizes)))} tokens for model={model} on this device"
        )
    if groups[0].block_bytes != experiment.block_bytes:
        raise BadInput(
            f"a block of model={model} has {groups[0].block_bytes:,} bytes in vLLM's plan, but "
            f"{experiment.block_bytes:,} by model.kv_layers and model.block_layers"
        )
    actual, planned = (
        ", ".join(sorted(f"{g.kind} of {g.layers} layers" for g in groups_))
        for groups_ in (groups, experiment.kv_groups)
    )
    if actual != planned:
        raise BadInput(
            f"the KV groups of model={model} are {actual} in vLLM's plan, but {planned} by "
            "model.kv_layers and model.block_layers"
        )


def instantiate_policy(option: Option, base: type[Policy]) -> Policy:
    """Make a policy with the experiment's settings for one engine; BadInput for a wrong class."""
    if not isinstance(option, base):
        raise BadInput(
            f"policy {option.name!r} is a {type(option).__name__}, which must be a subclass of "
            f"{base.__module__}.{base.__name__}"
        )
    return type(option).model_validate(option.model_dump())


def engine_arguments(
    platform: "Platform",
    batching: BatchingPolicy,
    overflow: OverflowPolicy,
    model_directory: Path,
) -> dict[str, Any]:
    """vLLM's `EngineArgs` for an experiment."""
    experiment, engine = platform.experiment, platform.experiment.engine
    arguments: dict[str, Any] = {
        "model": str(model_directory),
        "load_format": LOAD_FORMAT,
        "model_loader_extra_config": {"seed": experiment.seed},
        "skip_tokenizer_init": True,
        "dtype": experiment.model.dtype,
        "seed": experiment.seed,
        "enforce_eager": True,
        "max_model_len": engine.max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "block_size": experiment.cache.block_size,
        "num_gpu_blocks_override": experiment.cache_blocks + 1,  # vLLM keeps one, the null block
        "enable_prefix_caching": experiment.cache.prefix_caching,
        "kv_cache_dtype": experiment.cache.dtype,
        "scheduler_reserve_full_isl": engine.scheduler_reserve_full_isl,
        "watermark": experiment.cache.watermark,
        "async_scheduling": False,
        "disable_log_stats": True,
        "scheduler_cls": PolicyScheduler,
    }
    if experiment.workload.forces_outputs and experiment.device.allocates:
        arguments["logits_processors"] = [outputs.FORCE]
    arguments |= batching.engine_arguments()
    arguments |= overflow.engine_arguments(experiment.host_blocks)
    return arguments | platform.engine_arguments()


@contextmanager
def open_tracer(platform: "Platform", directory: Path) -> Iterator["PassTracer | None"]:
    """Open the tracer of the experiment's engine; yields None if no KV events are traced."""
    if platform.experiment.tracing.name == "none":
        yield None
        return
    tracer = platform.tracer(directory)
    try:
        yield tracer
    finally:
        tracer.close()


@contextmanager
def run_engine(platform: "Platform", directory: Path | None = None) -> Iterator[VllmEngine]:
    """Build the experiment's engine; at the end shut it down and free its memory.

    `directory` is for the temporary file of KV events, if they are traced.
    """
    from vllm import LLM

    platform.require()
    experiment = platform.experiment
    batching = instantiate_policy(experiment.batching, BatchingPolicy)
    overflow = instantiate_policy(experiment.overflow, OverflowPolicy)
    overflow.prepare(experiment)
    with (
        tempfile.TemporaryDirectory(prefix="kvscope-model-") as model,
        open_tracer(platform, directory or Path(model)) as tracer,
        select_attention(platform) if experiment.device.allocates else nullcontext(),
    ):
        config = Path(model) / "config.json"
        config.write_text(json.dumps(experiment.model.hf_config()), encoding="utf-8")
        llm = LLM(**engine_arguments(platform, batching, overflow, Path(model)))
        core = llm.llm_engine.engine_core.engine_core
        check_limits(experiment, core.scheduler, batching)
        check_groups(core.scheduler.kv_groups, experiment)
        rank = rank_of(overflow, experiment)
        core.scheduler.attach(batching, overflow, platform.clock, rank)
        recorder = RunRecorder(platform.clock, tracer)
        platform.observe(core.scheduler, recorder)
        if experiment.cache.admission == VLLM_0_4_2:
            admit_as_0_4_2(core.scheduler)
        recorder.observe(core.scheduler)  # after all that takes part in deciding
        try:
            yield _observed(llm, platform, core.scheduler, recorder)
        finally:
            platform.shut_down(llm)
            del llm, core
            gc.collect()


def check_limits(
    experiment: Experiment, scheduler: PolicyScheduler, batching: BatchingPolicy
) -> None:
    """Raise BadInput if vLLM does not cut prompts, cache prefixes, or limit passes as configured.

    It has no kernels for a part of a prompt, as of latent attention on a CPU.
    """
    chunked = batching.engine_arguments().get("enable_chunked_prefill")
    if chunked and not scheduler.scheduler_config.enable_chunked_prefill:
        raise BadInput(
            f"batching={batching.name} cuts prompts, but vLLM computes those of "
            f"model={experiment.model.name} whole on this device; use batching=mixed or "
            "batching=prefill_first"
        )
    if experiment.cache.prefix_caching and not scheduler.cache_config.enable_prefix_caching:
        raise BadInput(
            f"cache.prefix_caching is true, but vLLM caches no prefixes for "
            f"model={experiment.model.name} on this device; set it to false"
        )
    pass_tokens, most = scheduler.max_num_scheduled_tokens, experiment.engine.max_num_batched_tokens
    if pass_tokens > most:
        raise BadInput(
            f"engine.max_num_batched_tokens is {most}, but vLLM takes {pass_tokens} for "
            f"model={experiment.model.name} on this device; set that many or more"
        )


def _observed(
    llm: Any, platform: "Platform", scheduler: PolicyScheduler, recorder: RunRecorder
) -> VllmEngine:
    """The engine, with timed layers and traced attention on a device that computes."""
    tracer, layers = recorder.tracer, platform.experiment.model.layers
    if not platform.experiment.device.allocates:
        return VllmEngine(llm, platform, scheduler, recorder, None, layers, tracer)
    llm.apply_model(lambda model: worker_tier().attach(model, platform))
    check_layout(platform.experiment, scheduler.kv_groups)
    timer = LayerTimer(recorder)
    layers = llm.apply_model(timer.install)[0]
    attentions = llm.apply_model(find_own_attention)[0]
    for layer in attentions:
        layer.tracer = tracer
    return VllmEngine(llm, platform, scheduler, recorder, timer, layers, tracer, attentions)
