"""What recording costs: time of a forward pass with and without it, interleaved in one engine.

    python bench/recording.py [--rounds 30] [--write]

Two schedulers take turns in one running engine of tiny-llama, over the same requests: vLLM's own
and kvscope's recording one (with its layer hooks). The figure is the ratio of the median time of a
pass, pair by pair; --write stores it under bench/results/.
"""

import argparse
import gc
import json
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from kvscope.plan.grid import expand
from kvscope.run.environment import measured_environment
from kvscope.run.provenance import hardware, versions

ROOT = Path(__file__).parents[1]
OVERRIDES = [
    *("model=tiny-llama", "workload=fixed", "workload.num_requests=16"),
    *("workload.prompt_tokens=64", "workload.output_tokens=128"),
    *("cache.blocks=256", "profiler=none", "repeats=1", "warmup=1"),
]


class Silent:
    """Progress that nobody watches."""

    def advance(self, tokens: int) -> None:
        """Nothing to do."""


def pass_seconds(engine: Any, requests: Any, observe: bool) -> list[float]:
    """Times of the decode passes of one serving of the requests, observed or not."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from kvscope.engine.marks import Marks
    from kvscope.engine.recording import Recording
    from kvscope.engine.scheduler import RecordingScheduler
    from kvscope.run.session import serve

    scheduler = engine.scheduler
    scheduler.__class__ = RecordingScheduler if observe else Scheduler
    if observe:
        scheduler.begin(Recording(), Marks())
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
    gc.disable()
    try:
        serve(engine, requests, Silent())  # type: ignore[arg-type]
    finally:
        gc.enable()
        engine.vllm.step = step
        engine.timer.remove()
    return times[1:-1]  # all requests decode: the same batch in every pass


def measure(rounds: int) -> dict[str, Any]:
    """Run the comparison; seconds a pass, and the ratio with its spread."""
    from kvscope.engine.build import running
    from kvscope.workload.requests import build

    experiment = expand(None, OVERRIDES, ROOT / "config").experiments[0].experiment
    requests = build(experiment)
    with running(experiment) as engine:
        engine.timer.remove()
        for observe in (True, False):
            pass_seconds(engine, requests, observe)
        plain, recorded = [], []
        for round_ in range(rounds):
            order = (False, True) if round_ % 2 else (True, False)
            for observe in order:
                median = statistics.median(pass_seconds(engine, requests, observe))
                (recorded if observe else plain).append(median)
            print(f"\r{round_ + 1}/{rounds}", end="", file=sys.stderr)
        print(file=sys.stderr)
    ratios = sorted(r / p for r, p in zip(recorded, plain, strict=True))
    return {
        "plain_pass_s": statistics.median(plain),
        "recorded_pass_s": statistics.median(recorded),
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "rounds": rounds,
        "passes_per_round": requests[0].output_tokens - 2,
    }


def main() -> None:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
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
