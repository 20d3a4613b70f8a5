"""Steps of Vidur's vLLM scheduler on a run's workload, for `kvscope score`.

    pip install --no-deps vidur==0.0.26 && pip install scikit-learn fasteners
    python packages/kvscope-paper/bench/vidur_steps.py REFERENCE steps.csv
    kvscope score steps.csv --run REFERENCE

Vidur (github.com/microsoft/vidur) has its scheduler in Python. It is stepped here without Vidur's
event loop and its predictor of times, on which steps do not depend if all requests are there at the
start. REFERENCE is a run of kvscope with `overflow=recompute`: blocks, budget and lengths are its.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vidur.entities import Request  # type: ignore[import-not-found]
from vidur.scheduler.replica_scheduler.vllm_replica_scheduler import (  # type: ignore[import-not-found]
    VLLMReplicaScheduler,
)

from kvscope.plan.experiment import Experiment, load
from kvscope.tables.results import Run
from kvscope.tables.runfile import EXPERIMENT_FILE

COLUMNS = ("step", "requests", "tokens", "preempted", "victims", "kv_blocks_used")


class SteppedScheduler(VLLMReplicaScheduler):  # type: ignore[misc]
    """Vidur's scheduler; its own constructor takes these numbers from the setup of a simulation."""

    def __init__(self, experiment: Experiment) -> None:
        engine, blocks = experiment.engine, experiment.cache_blocks
        most_requests = engine.max_num_seqs
        budget = experiment.batching.pass_tokens or engine.max_num_batched_tokens
        self._config = SimpleNamespace(batch_size_cap=most_requests, max_tokens_in_batch=budget)
        self._cache_config = SimpleNamespace(
            block_size=experiment.cache.block_size, num_blocks=blocks
        )
        self._watermark_blocks = int(experiment.cache.watermark * blocks)
        self._max_micro_batch_size = most_requests
        self._replica_id, self._num_stages = 0, 1
        self._request_queue: list[Request] = []
        self._preempted_requests: list[Request] = []
        self._num_running_batches = self._num_running_stages = self._num_allocated_blocks = 0
        self._allocation_map: dict[int, int] = {}


def steps(experiment: Experiment, lengths: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """The rows of the trace; requests are numbered as in the workload, from 0."""
    scheduler = SteppedScheduler(experiment)
    requests = [Request(float(n), *length) for n, length in enumerate(lengths)]
    number = {request.id: n for n, request in enumerate(requests)}
    restarts = dict.fromkeys(number, 0)
    for request in requests:
        scheduler.add_request(request)
    step = 0
    while batch := scheduler.on_schedule(float(step)):
        victims = [r for r in requests if r.num_restarts > restarts[r.id]]
        restarts |= {r.id: r.num_restarts for r in victims}
        for request in victims:  # Vidur 0.0.26 restarts a request without these
            request._num_stage_processed_tokens = 0
            request._is_prefill_stage_complete = False
        yield {
            "step": step,
            "requests": len(batch.requests),
            "tokens": sum(batch.num_q_tokens),
            "preempted": len(victims),
            "victims": ";".join(str(number[r.id]) for r in reversed(victims)),
            "kv_blocks_used": scheduler.num_allocated_blocks,
        }
        for request, tokens in zip(batch.requests, batch.num_q_tokens, strict=True):
            request.on_batch_schedule(float(step))
            request.on_batch_stage_schedule(float(step))
            request.on_batch_stage_end(float(step), 0, 0.0, 0.0, tokens)
            request.on_batch_end(float(step), tokens)
        scheduler.on_batch_end(batch)
        scheduler.on_stage_end(0, None)
        step += 1


def main() -> None:
    """Write the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path, help="a run's directory")
    parser.add_argument("out", type=Path, help="a .csv")
    given = parser.parse_args()
    requests = Run(given.reference).workload
    lengths = list(zip(requests["prompt_tokens"], requests["output_tokens"], strict=True))
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(steps(load(given.reference / EXPERIMENT_FILE), lengths))


if __name__ == "__main__":
    main()
