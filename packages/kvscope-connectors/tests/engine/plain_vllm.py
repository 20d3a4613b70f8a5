"""Requests served under vLLM's offloading by kvscope, and by vLLM without it: the same counts."""

import json
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvscope.engine.devices.platform import platform_of
from kvscope.engine.marks import Marks
from kvscope.engine.recording import Recording
from kvscope.engine.vllm.build import run_engine
from kvscope.engine.vllm.weights import LOAD_FORMAT
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run.recorder import RepeatContext, replay
from kvscope.run.serving import serve
from kvscope.workload.requests import Request
from tests.engine.conftest import ROOT, Silent

BLOCK_SIZE, HOST_BLOCKS = 32, 512
ENGINE = {"max_model_len": 1024, "max_num_batched_tokens": 1024, "max_num_seqs": 16}
WORDS = (
    *("workload=uniform", "profiler=none", "model=tiny-llama", "model.layers=2"),
    *(f"engine.{key}={value}" for key, value in ENGINE.items()),
    *(f"cache.block_size={BLOCK_SIZE}", "cache.admission=vllm", "cache.watermark=0"),
)


def requests(seed: int, count: int = 12, shared: int = 0) -> list[Request]:
    """Requests of random lengths, whose prompts begin with the same `shared` tokens."""
    draw = random.Random(seed)
    common = [draw.randrange(3, 512) for _ in range(shared)]
    made = []
    for number in range(count):
        own = [draw.randrange(3, 512) for _ in range(draw.randint(60, 200))]
        prompt = np.array([*common, *own], np.int32)
        made.append(Request(str(number), 0.0, prompt, draw.randint(100, 250)))
    return made


def experiment(blocks: int, *words: str) -> Experiment:
    asked = [*WORDS, f"cache.blocks={blocks}", *words]
    return expand(None, asked, ROOT / "config").experiments[0].experiment


def by_kvscope(asked: Experiment, served: list[Request], repeats: int = 1) -> list[dict[str, Any]]:
    """The counts of each repeat, and the tokens that came out."""
    results = []
    with run_engine(platform_of(asked)) as engine:
        for _ in range(repeats):
            recording = Recording()
            engine.begin(recording, Marks())
            outputs = serve(engine, served, Silent()).outputs
            results.append(counts(recording, outputs))
    return results


def counts(recording: Recording, outputs: dict[str, list[int]]) -> dict[str, Any]:
    moved: Counter[str] = Counter()
    for transfer in recording.transfers:
        moved[transfer.direction] += transfer.blocks
    context = RepeatContext(0, 0, 0, 0, BLOCK_SIZE, "measured")
    batch = replay(recording, context).batch
    return {
        "preemptions": len(recording.preemptions),
        "lost": sum(record.tokens for record in recording.preemptions),
        "computed": int(batch["scheduled_tokens"].sum()),
        "recomputed": int(batch["recomputed_tokens"].sum()),
        "passes": len(recording.passes),
        "stored": moved["out"],
        "loaded": moved["in"],
        "outputs": outputs,
    }


def by_hand(asked: Experiment, served: list[Request], prompt_only: bool) -> dict[str, Any]:
    """Results of vLLM's `LLM` with its own scheduler and connector; the worker has no GPU."""
    from vllm import LLM, SamplingParams
    from vllm.v1.kv_offload.base import OffloadingWorker

    from kvscope_connectors.worker import HostWorker

    result: Counter[str] = Counter()
    connector = {
        "cpu_bytes_to_use": HOST_BLOCKS * asked.block_bytes,
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": "kvscope_connectors.worker",
        "offload_prompt_only": prompt_only,
    }
    assert issubclass(HostWorker, OffloadingWorker)
    with TemporaryDirectory() as model:
        Path(model, "config.json").write_text(json.dumps(asked.model.hf_config()), encoding="utf-8")
        llm = LLM(
            model=model,
            load_format=LOAD_FORMAT,
            model_loader_extra_config={"seed": asked.seed},
            skip_tokenizer_init=True,
            dtype=asked.model.dtype,
            seed=asked.seed,
            enforce_eager=True,
            enable_chunked_prefill=False,
            block_size=BLOCK_SIZE,
            num_gpu_blocks_override=asked.cache_blocks + 1,
            kv_cache_memory_bytes=(asked.cache_blocks + 1) * asked.block_bytes,
            enable_prefix_caching=False,
            async_scheduling=False,
            disable_log_stats=True,
            kv_transfer_config={
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": connector,
            },
            **ENGINE,
        )
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    preempt, schedule = scheduler._preempt_request, scheduler.schedule

    def counted_preempt(request: Any, *args: Any, **kwargs: Any) -> None:
        result["preemptions"] += 1
        result["lost"] += request.num_computed_tokens
        preempt(request, *args, **kwargs)

    def counted_schedule(*args: Any, **kwargs: Any) -> Any:
        scheduled = schedule(*args, **kwargs)
        orders = scheduled.kv_connector_metadata
        result["passes"] += scheduled.total_num_scheduled_tokens > 0
        result["computed"] += scheduled.total_num_scheduled_tokens
        result["stored"] += sum(len(job.src_spec.block_ids) for job in orders.store_jobs.values())
        result["loaded"] += sum(len(job.dst_spec.block_ids) for job in orders.load_jobs.values())
        return scheduled

    scheduler._preempt_request, scheduler.schedule = counted_preempt, counted_schedule
    for request in served:
        prompt, many = request.prompt_token_ids.tolist(), request.output_tokens
        sampling = SamplingParams(max_tokens=many, temperature=0, ignore_eos=True, detokenize=False)
        llm.llm_engine.add_request(request.request_id, {"prompt_token_ids": prompt}, sampling)
    outputs = {}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            outputs[output.request_id] = list(output.outputs[0].token_ids)
    while scheduler.has_requests():
        llm.llm_engine.step()
    core.shutdown()
    return dict(result) | {"outputs": outputs}


def both(policy: str, seed: int, blocks: int, shared: int) -> tuple[dict[str, Any], ...]:
    """Results by kvscope, by hand, and by kvscope on the modeled device, whose host copies by
    itself."""
    words = (f"overflow={policy}", f"overflow.host_blocks={HOST_BLOCKS}", "overflow.host_gib=null")
    asked, served = experiment(blocks, *words), requests(seed, shared=shared)
    hand = by_hand(asked, served, prompt_only=policy == "native")
    modeled = experiment(blocks, *words, "device=modeled", "device.hardware=cpu")
    first, again = by_kvscope(modeled, served, repeats=2)
    assert first == again
    return by_kvscope(asked, served)[0], hand, first
