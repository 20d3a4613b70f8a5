"""Cost of tracing KV events, and kvscope's attention compared with vLLM's, in turns.

    python bench/tracing.py [--rounds 40] [--write]

Two processes hold an engine of tiny-llama each, one with vLLM's own CPU attention and one with
`engine.attention=instrumented`, and serve the same requests in turns: vLLM's, then ours without
tracing, at the default sampling, and with every event traced. A machine's speed drifts, so each
serving is compared with its neighbours of the same round: figures are medians over the rounds of
ratios of the median pass, with 95 % intervals by bootstrap. --write stores them in bench/results/.
"""

import argparse
import gc
import json
import multiprocessing
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Silent, in_measured_environment, store

from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand

ROOT = Path(__file__).parents[1]
COMMON = ["model=tiny-llama", "cache.blocks=512", "profiler=none", "device.threads=2"]
WORKLOADS = {
    "decode": [
        *("workload.num_requests=16", "workload.prompt_tokens=256", "workload.output_tokens=48"),
        *("engine.max_num_batched_tokens=4096",),
    ],
    "prefill": [
        *("workload.num_requests=8", "workload.prompt_tokens=512", "workload.output_tokens=1"),
        *("engine.max_num_batched_tokens=1024",),
    ],
}
STRIDES = {"sampled": 4, "full": 1}  # of KV heads
MODES = ("vllm", "off", "sampled", "full")


def experiment(workload: str, attention: str) -> Experiment:
    """The experiment of one engine."""
    kind = ["tracing=full"] if attention == "instrumented" else []
    overrides = [*COMMON, *WORKLOADS[workload], *kind]
    return expand(None, overrides, ROOT / "config").experiments[0].experiment


def engine_process(workload: str, attention: str, pipe: Connection) -> None:
    """Hold an engine and serve the requests in the mode asked for, until None is asked for."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine
    from kvscope.workload.requests import build

    chosen = experiment(workload, attention)
    requests = build(chosen)
    with (
        tempfile.TemporaryDirectory() as directory,
        run_engine(platform_of(chosen), Path(directory)) as engine,
    ):
        while (mode := pipe.recv()) is not None:
            pipe.send(serving(engine, requests, mode, workload))


def serving(engine: Any, requests: Any, mode: str, phase: str) -> dict[str, Any]:
    """Serve the requests once; seconds of each pass of the phase, and events."""
    from kvscope.engine.marks import Marks
    from kvscope.engine.recording import Recording
    from kvscope.run.serving import serve

    recording = Recording()
    engine.begin(recording, Marks())
    tracer = engine.tracer
    engine.recorder.tracer = tracer if mode in STRIDES else None
    if mode in STRIDES:
        tracer.clear()
        tracer.head_stride = STRIDES[mode]
        tracer.kv_heads = list(range(0, 8, STRIDES[mode]))
    gc.collect()
    serve(engine, requests, Silent())  # type: ignore[arg-type]
    wanted = [
        (p.end_ns - p.schedule_start_ns) * 1e-9
        for p in recording.passes
        if all((row.computed == 1) == (phase == "decode") for row in p.batch())
    ]
    events = dropped = 0
    if mode in STRIDES:
        tracer.finish()
        counts = [launch.segments for one in tracer.passes for launch in tracer.launches(one)]
        events = sum(int(segments["events"].sum()) for segments in counts)
        dropped = sum(int(segments["dropped"].sum()) for segments in counts)
    return {
        "seconds": wanted,
        "events": events,
        "dropped": dropped,
        "passes": len(recording.passes),
    }


def interval(ratios: np.ndarray) -> list[float]:
    """95 % interval of the median, by bootstrap."""
    picks = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    return [float(x) for x in np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])]


def compared(times: dict[str, np.ndarray], mode: str, baseline: str) -> dict[str, Any]:
    """The ratio of the median pass of two modes, over the rounds."""
    ratios = np.median(times[mode], axis=1) / np.median(times[baseline], axis=1)
    return {"ratio": float(np.median(ratios)), "ratio_95_percent": interval(ratios)}


def measure(workload: str, rounds: int) -> dict[str, Any]:
    """Run one workload in all modes, in turns."""
    context = multiprocessing.get_context("spawn")
    pipes = {}
    processes = []
    for attention in ("vllm", "instrumented"):
        pipes[attention], theirs = context.Pipe()
        processes.append(context.Process(target=engine_process, args=(workload, attention, theirs)))
        processes[-1].start()
    result: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for number in range(-2, rounds):
        for mode in MODES if number % 2 else reversed(MODES):
            pipe = pipes["vllm" if mode == "vllm" else "instrumented"]
            pipe.send(mode)
            if number >= 0:
                result[mode].append(pipe.recv())
            else:
                pipe.recv()  # warm-up
        print(f"\r{workload} {max(number + 1, 0)}/{rounds}", end="", file=sys.stderr)
    print(file=sys.stderr)
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
    times = {mode: np.array([row["seconds"] for row in result[mode]]) for mode in MODES}
    return {
        "pass_ms": {mode: float(np.median(times[mode]) * 1e3) for mode in MODES},
        "off_vs_vllm": compared(times, "off", "vllm"),
        "sampled_vs_off": compared(times, "sampled", "off"),
        "full_vs_off": compared(times, "full", "off"),
        "events_per_serving": {mode: result[mode][0]["events"] for mode in STRIDES},
        "dropped": sum(row["dropped"] for mode in STRIDES for row in result[mode]),
        "rounds": rounds,
        "passes_per_round": int(times["off"].shape[1]),
    }


def main() -> None:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    in_measured_environment(experiment("decode", "instrumented"))
    result: dict[str, Any] = {name: measure(name, arguments.rounds) for name in WORKLOADS}
    print(json.dumps(result, indent=2))
    if arguments.write:
        store("tracing", result, f"python bench/tracing.py --rounds {arguments.rounds}")


if __name__ == "__main__":
    main()
