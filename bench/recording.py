"""What recording costs: time of a forward pass with and without it, in turns.

    python bench/recording.py [--rounds 200] [--write]

One engine of tiny-llama serves the same requests over and over, its passes scheduled in turns by
vLLM's own scheduler and by kvscope's recording one with its layer hooks. A shared machine's speed
drifts by far more than recording costs, so each serving is compared with its neighbour: the figure
is the median over the rounds of (median recorded pass / median plain pass), with a 95 % interval by
bootstrap. --write stores it under bench/results/.
"""

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from kvscope.plan.grid import expand
from kvscope.run.environment import measured_environment
from kvscope.run.provenance import hardware, versions

ROOT = Path(__file__).parents[1]
OVERRIDES = [
    *("model=tiny-llama", "workload=fixed", "workload.num_requests=16"),
    *("workload.prompt_tokens=64", "workload.output_tokens=32"),
    *("cache.blocks=256", "profiler=none", "repeats=1", "warmup=1"),
]


class Silent:
    """Progress that nobody watches."""

    def advance(self, tokens: int) -> None:
        """Nothing to do."""


def serving(engine: Any, requests: Any, observed: bool) -> list[float]:
    """Serve the requests once, recorded or left to vLLM alone; seconds of each pass."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from kvscope.engine.marks import Marks
    from kvscope.engine.recording import Recording
    from kvscope.engine.scheduler import RecordingScheduler
    from kvscope.run.session import serve

    engine.scheduler.begin(Recording(), Marks())
    engine.timer.remove()
    engine.scheduler.__class__ = RecordingScheduler if observed else Scheduler
    if observed:
        engine.llm.apply_model(engine.timer.install)
    times: list[float] = []
    step = engine.vllm.step

    def timed_step() -> Any:
        start = perf_counter_ns()
        outputs = step()
        times.append((perf_counter_ns() - start) * 1e-9)
        return outputs

    engine.vllm.step = timed_step
    gc.collect()
    try:
        serve(engine, requests, Silent())  # type: ignore[arg-type]
    finally:
        engine.vllm.step = step
        engine.scheduler.__class__ = RecordingScheduler
    return times


def measure(rounds: int) -> dict[str, Any]:
    """Run the comparison; milliseconds a pass, and the ratio with its interval."""
    from kvscope.engine.build import running
    from kvscope.workload.requests import build

    experiment = expand(None, OVERRIDES, ROOT / "config").experiments[0].experiment
    requests = build(experiment)
    times: dict[bool, list[list[float]]] = {False: [], True: []}
    with running(experiment) as engine:
        for number in range(-1, rounds):
            for observed in (False, True) if number % 2 else (True, False):
                found = serving(engine, requests, observed)
                if number >= 0:  # the first round warms up
                    times[observed].append(found)
            print(f"\r{number + 1}/{rounds}", end="", file=sys.stderr)
        print(file=sys.stderr)
    plain, recorded = np.array(times[False]), np.array(times[True])
    ratios = np.median(recorded, axis=1) / np.median(plain, axis=1)
    picks = np.random.default_rng(0).integers(rounds, size=(2000, rounds))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])
    return {
        "plain_pass_ms": float(np.median(plain) * 1e3),
        "recorded_pass_ms": float(np.median(recorded) * 1e3),
        "ratio": float(np.median(ratios)),
        "ratio_95_percent": [float(low), float(high)],
        "rounds": rounds,
        "passes_per_round": plain.shape[1],
    }


def main() -> None:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    experiment = expand(None, OVERRIDES, ROOT / "config").experiments[0].experiment
    environment = measured_environment(experiment)
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    result = measure(given.rounds)
    print(json.dumps(result, indent=2))
    if given.write:
        result |= {
            "command": f"python bench/recording.py --rounds {given.rounds}",
            "versions": versions(),
            "hardware": hardware(),
        }
        path = ROOT / "bench" / "results" / "recording.json"
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
