"""From an experiment to a vLLM engine: no weights, no tokenizer, no network."""

import gc
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.engine.layers import LayerTimer
from kvscope.engine.scheduler import RecordingScheduler
from kvscope.engine.weights import LOAD_FORMAT
from kvscope.plan.experiment import Experiment


@dataclass
class Engine:
    """A running vLLM engine and the parts of it that a run observes."""

    llm: Any
    scheduler: RecordingScheduler
    timer: LayerTimer
    layers: int

    @property
    def vllm(self) -> Any:
        """vLLM's `LLMEngine`: add_request, step, has_unfinished_requests."""
        return self.llm.llm_engine


def engine_arguments(experiment: Experiment, model_directory: Path) -> dict[str, Any]:
    """vLLM's `EngineArgs` for an experiment."""
    engine, batching = experiment.engine, experiment.batching
    blocks = experiment.cache_blocks + 1  # vLLM keeps one block, the null block, for itself
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
        "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": batching.name == "chunked",
        "async_scheduling": False,
        "disable_log_stats": True,
        "scheduler_cls": RecordingScheduler,
    }
    if batching.name == "chunked":
        arguments["max_num_scheduled_tokens"] = batching.chunk_tokens
    if experiment.device.name == "cpu":
        # An explicit size spares vLLM a profiling pass that only sizes the cache.
        arguments["kv_cache_memory_bytes"] = blocks * experiment.block_bytes
    return arguments


@contextmanager
def running(experiment: Experiment) -> Iterator[Engine]:
    """Build the experiment's engine; shut it down and free its memory at the end."""
    from vllm import LLM

    with tempfile.TemporaryDirectory(prefix="kvscope-model-") as directory:
        config = Path(directory) / "config.json"
        config.write_text(json.dumps(experiment.model.hf_config()), encoding="utf-8")
        llm = LLM(**engine_arguments(experiment, Path(directory)))
        core = llm.llm_engine.engine_core.engine_core
        timer = LayerTimer(core.scheduler)
        layers = llm.apply_model(timer.install)[0]
        try:
            yield Engine(llm, core.scheduler, timer, layers)
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm, core
            gc.collect()
