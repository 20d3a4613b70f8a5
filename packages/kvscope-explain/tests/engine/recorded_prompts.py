"""Serves prompts one after another by a recorded engine of vLLM.

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
    """Serve the waves; a prompt may be an object with `tokens`, `outputs` and `salt`."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["KVSCOPE_RECORD"] = recording
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(EngineArgs(model, **(ENGINE | settings)))
    number = 0
    for wave in waves:
        for prompt in wave:
            one = prompt if isinstance(prompt, dict) else {"tokens": prompt}
            how = SamplingParams(
                max_tokens=one.get("outputs", 1), temperature=0, ignore_eos=True, detokenize=False
            )
            given = {"prompt_token_ids": one["tokens"]}
            if "salt" in one:
                given["cache_salt"] = one["salt"]
            engine.add_request(str(number), given, how)
            number += 1
        while engine.has_unfinished_requests():
            engine.step()
    engine.engine_core.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.load(sys.stdin))
