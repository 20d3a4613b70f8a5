"""Serves requests by vLLM, one engine after another, and says what came out of each.

    python served.py MODEL RESULTS

Standard input has a JSON list of engines: settings of `EngineArgs`, and under `record` where each
is recorded, or null; under `more_bytes`, if it is there, how much longer the recording may become
after its first passes; under `overlapping`, whether its scheduler is driven as with asynchronous
scheduling. Requests come while others run, share prefixes, and one is aborted; the cache is too
small for them. RESULTS gets the tokens of the requests, and vLLM's own counts, a list too.
"""

import json
import os
import random
import resource
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

REQUESTS, ABORTED, SHARED_TOKENS, PASSES_APART = 10, 5, 64, 3
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
}
COUNTED = (
    *("vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
    *("vllm:prompt_tokens", "vllm:generation_tokens"),
    *("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"),
)


def lengths(number: int) -> tuple[list[int], int]:
    """A request's prompt and the number of tokens to make: the same in every process."""
    draw, common = random.Random(number), random.Random("common")
    shared = [common.randrange(3, 1000) for _ in range(SHARED_TOKENS * (number % 2))]
    own = [draw.randrange(3, 1000) for _ in range(draw.randint(20, 90))]
    return [*shared, *own], draw.randint(40, 80)


def counts() -> dict[str, float]:
    """vLLM's metrics, as `/metrics` has them."""
    from prometheus_client import REGISTRY

    result: dict[str, float] = dict.fromkeys(COUNTED, 0.0)
    for metric in REGISTRY.collect():
        if metric.name in COUNTED:
            for sample in metric.samples:
                result[metric.name] += sample.value if sample.name.endswith("_total") else 0
    return result


def allow_more(recording: Path, more_bytes: int, wait_s: float = 60.0) -> None:
    """Let the recording grow by some bytes, no more, once a pass of it is written."""
    from kvscope_record.glance import look

    deadline_s = time.monotonic() + wait_s
    # Its first file is there only when its first passes are written.
    while not any(recording.glob("segment-*")) or look(recording) is None:
        assert time.monotonic() < deadline_s, f"no pass is in {recording} after {wait_s} s"
        time.sleep(0.05)
    written = max(path.stat().st_size for path in recording.glob("segment-*"))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written + more_bytes, hard))


def await_end_of_recording(wait_s: float = 60.0) -> None:
    """Wait until the thread that writes the recording has ended."""
    deadline_s = time.monotonic() + wait_s
    while any(thread.name == "kvscope-record" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, f"the recording goes on after {wait_s} s"
        time.sleep(0.05)


def serve(
    model: str,
    settings: dict[str, Any],
    recording: str | None,
    more_bytes: int | None,
    overlapping: bool,
) -> dict[str, Any]:
    """Serve the requests; the tokens of each, and vLLM's counts."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = EngineArgs(model, disable_log_stats=False, **(ENGINE | settings))
    engine = LLMEngine.from_engine_args(arguments)
    if overlapping:
        return overlap(engine.engine_core.engine_core)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    outputs: dict[str, list[int]] = {}
    passes, aborted = 0, False
    while len(outputs) < REQUESTS or engine.has_unfinished_requests():
        if passes % PASSES_APART == 0 and (number := len(outputs)) < REQUESTS:
            prompt, tokens = lengths(number)
            how = SamplingParams(
                max_tokens=tokens,
                temperature=0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            outputs[str(number)] = []
            engine.add_request(str(number), {"prompt_token_ids": prompt}, how)
        if passes == PASSES_APART and recording is not None and more_bytes is not None:
            allow_more(Path(recording), more_bytes)
        passes += 1
        for output in engine.step():
            outputs[output.request_id] += output.outputs[0].token_ids
        if len(outputs.get(str(ABORTED), ())) > 10 and not aborted:
            aborted = True
            engine.abort_request([str(ABORTED)])
    scheduler = engine.engine_core.engine_core.scheduler
    result = {
        "outputs": outputs,
        "counts": counts(),
        "scheduler": type(scheduler).__name__,
    }
    if recording is not None and more_bytes is not None:
        await_end_of_recording()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    engine.engine_core.shutdown()
    return result


def overlap(core: Any) -> dict[str, Any]:
    """Schedule each pass before the output of the previous pass is there, unlike any CPU engine.

    A token that means nothing stands for each that a model would give. The aborted request has
    a stop string.
    """
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    scheduler, requests = core.scheduler, list[Request]()
    given = dict.fromkeys(map(str, range(REQUESTS)), 0)
    under_way: deque[tuple[Any, ModelRunnerOutput]] = deque()
    passes, hits = 0, 0.0
    while len(requests) < REQUESTS or scheduler.has_unfinished_requests() or under_way:
        if passes % PASSES_APART == 0 and (number := len(requests)) < REQUESTS:
            prompt, tokens = lengths(number)
            stop = "a stop string" if number == ABORTED else None
            how = SamplingParams(max_tokens=tokens, ignore_eos=True, stop=stop)
            hasher = core.request_block_hasher
            requests.append(Request(str(number), prompt, how, None, block_hasher=hasher))
            scheduler.add_request(requests[-1])
        passes += 1
        scheduled = scheduler.schedule()
        if scheduled.total_num_scheduled_tokens:
            names = list(scheduled.num_scheduled_tokens)
            chunks = [scheduler.requests[name].is_prefill_chunk for name in names]
            tokens_of = [[] if chunk else [7] for chunk in chunks]
            places = {name: place for place, name in enumerate(names)}
            under_way.append((scheduled, ModelRunnerOutput(names, places, tokens_of)))
        if len(under_way) == 2 or (under_way and not scheduled.total_num_scheduled_tokens):
            for outputs in scheduler.update_from_output(*under_way.popleft()).values():
                for output in outputs.outputs:
                    given[output.request_id] += len(output.new_token_ids)
                if outputs.scheduler_stats is not None:
                    hits += outputs.scheduler_stats.prefix_cache_stats.hits
        if given[str(ABORTED)] == 11 and not requests[ABORTED].is_finished():
            scheduler.finish_requests(str(ABORTED), RequestStatus.FINISHED_ABORTED)
    scheduler.shutdown()
    prompts = sum(request.num_prompt_tokens for request in requests)
    preempted = sum(request.num_preemptions for request in requests)
    numbers = (preempted, prompts, hits, prompts, sum(given.values()), 0, 0)
    return {
        "outputs": {name: [7] * count for name, count in given.items()},
        "counts": dict(zip(COUNTED, numbers, strict=True)),
        "scheduler": type(scheduler).__name__,
    }


def main(model: str, results: Path, engines: list[dict[str, Any]]) -> None:
    """Serve by each engine in turn."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    made = []
    for settings in engines:
        if record := settings.pop("record"):
            from kvscope_record.plugin import register

            os.environ["KVSCOPE_RECORD"] = record
            register()  # vLLM loads plugins once a process, and the first engine was not recorded
        made.append(
            serve(
                model,
                settings,
                record,
                settings.pop("more_bytes", None),
                settings.pop("overlapping", False),
            )
        )
        os.environ.pop("KVSCOPE_RECORD", None)
    results.write_text(json.dumps(made))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.load(sys.stdin))
