"""Cost of recording: time of a forward pass and of its schedule, with and without it, in turns.

    python bench/recording.py [--rounds 200] [--write]

One engine of tiny-llama serves the same requests over and over, its passes scheduled in turns by
vLLM's own scheduler and by kvscope's (`mixed`), which is observed, as are its layers. A machine's
speed drifts by far more than recording costs, so each serving is compared with its neighbour: the
figures are medians over the rounds of (median recorded / median plain), with 95 % intervals by
bootstrap. --write stores them under bench/results/.
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from measuring import in_measured_environment, store

from kvscope.plan.grid import expand

ROOT = Path(__file__).parents[1]
OVERRIDES = [
    *("model=tiny-llama", "workload=fixed", "workload.num_requests=16"),
    *("workload.prompt_tokens=64", "workload.output_tokens=32"),
    *("cache.blocks=256", "profiler=none", "repeats=1", "warmup=1"),
]


def stopwatch(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    """The function, noting the seconds of every call."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        result = function(*args, **kwargs)
        times.append((perf_counter_ns() - start) * 1e-9)
        return result

    return timed


def serving(engine: Any, requests: Any, observed: bool) -> tuple[list[float], list[float]]:
    """Serve the requests once, recorded or not; seconds of each pass and of each schedule."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from kvscope.engine.marks import Marks
    from kvscope.engine.recording import Recording
    from kvscope.engine.vllm.scheduler import PolicyScheduler
    from kvscope.run.serving import submit

    engine.begin(Recording(), Marks())
    engine.timer.remove()
    engine.recorder.observer.release()
    engine.scheduler.__class__ = PolicyScheduler if observed else Scheduler
    if observed:
        engine.recorder.observe(engine.scheduler)
        engine.llm.apply_model(engine.timer.install)
    passes: list[float] = []
    schedules: list[float] = []
    step = engine.vllm.step
    engine.vllm.step = stopwatch(step, passes)
    schedule = vars(engine.scheduler).get("schedule")  # of the observer
    engine.scheduler.schedule = stopwatch(engine.scheduler.schedule, schedules)
    gc.collect()
    try:
        for request in requests:
            submit(engine, request)
        while engine.has_unfinished_requests():
            engine.vllm.step()
    finally:
        engine.vllm.step = step
        del engine.scheduler.schedule
        if schedule is not None:
            engine.scheduler.schedule = schedule
        engine.scheduler.__class__ = PolicyScheduler
    return passes, schedules


def compare(plain: np.ndarray, recorded: np.ndarray) -> dict[str, Any]:
    """Medians in ms of seconds (round, pass), and their ratio with its 95 % interval."""
    ratios = np.median(recorded, axis=1) / np.median(plain, axis=1)
    picks = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])
    return {
        "plain_ms": float(np.median(plain) * 1e3),
        "recorded_ms": float(np.median(recorded) * 1e3),
        "ratio": float(np.median(ratios)),
        "ratio_95_percent": [float(low), float(high)],
    }


def measure(rounds: int) -> dict[str, Any]:
    """Run the comparison, in turns."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine
    from kvscope.workload.requests import build

    experiment = expand(None, OVERRIDES, ROOT / "config").experiments[0].experiment
    requests = build(experiment)
    times: dict[bool, list[tuple[list[float], list[float]]]] = {False: [], True: []}
    with run_engine(platform_of(experiment)) as engine:
        for number in range(-1, rounds):
            for observed in (False, True) if number % 2 else (True, False):
                result = serving(engine, requests, observed)
                if number >= 0:  # the first round warms up
                    times[observed].append(result)
            print(f"\r{number + 1}/{rounds}", end="", file=sys.stderr)
        print(file=sys.stderr)
    plain, recorded = (np.array(times[observed]) for observed in (False, True))
    return {
        "pass": compare(plain[:, 0], recorded[:, 0]),
        "schedule": compare(plain[:, 1], recorded[:, 1]),
        "rounds": rounds,
        "passes_per_round": plain.shape[2],
    }


def main() -> None:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    in_measured_environment(expand(None, OVERRIDES, ROOT / "config").experiments[0].experiment)
    result = measure(arguments.rounds)
    print(json.dumps(result, indent=2))
    if arguments.write:
        store("recording", result, f"python bench/recording.py --rounds {arguments.rounds}")


if __name__ == "__main__":
    main()
