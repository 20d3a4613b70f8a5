"""Schedules prompts one after another by a recorded engine of vLLM, whose model computes nothing.

    python recorded_prompts.py MODEL RECORDING SETTINGS

Standard input has a JSON list of waves of prompts, each a list of token ids: those of a wave come
together. SETTINGS are of `EngineArgs`, as JSON.
"""

import json
import os
import sys
from typing import Any

ENGINE = {
    "load_format": "kvscope_seeded",
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "block_size": 32,
    "num_gpu_blocks_override": 20,
    "kv_cache_memory_bytes": 1 << 24,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "async_scheduling": False,
}


def main(model: str, recording: str, settings: dict[str, Any], waves: list[list[Any]]) -> None:
    """Serve the waves; a prompt may be an object with `tokens`, `outputs` and `salt`.

    The scheduler is vLLM's; a token that means nothing stands for each that a model would give.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["KVSCOPE_RECORD"] = recording
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.request import Request

    engine = LLMEngine.from_engine_args(EngineArgs(model, **(ENGINE | settings)))
    core = engine.engine_core.engine_core
    number = 0
    for wave in waves:
        for prompt in wave:
            one = prompt if isinstance(prompt, dict) else {"tokens": prompt}
            how = SamplingParams(max_tokens=one.get("outputs", 1), ignore_eos=True)
            hasher = core.request_block_hasher
            request = Request(
                str(number),
                one["tokens"],
                how,
                None,
                cache_salt=one.get("salt"),
                block_hasher=hasher,
            )
            core.scheduler.add_request(request)
            number += 1
        while core.scheduler.has_unfinished_requests():
            compute(core.scheduler)
    core.scheduler.shutdown()


def compute(scheduler: Any) -> None:
    """Schedule a pass, and give its requests their tokens."""
    from vllm.v1.outputs import ModelRunnerOutput

    scheduled = scheduler.schedule()
    names = list(scheduled.num_scheduled_tokens)
    chunks = [scheduler.requests[name].is_prefill_chunk for name in names]
    places = {name: place for place, name in enumerate(names)}
    tokens = [[] if chunk else [7] for chunk in chunks]
    scheduler.update_from_output(scheduled, ModelRunnerOutput(names, places, tokens))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.load(sys.stdin))
