"""Cost of `kvscope record` for a server's step, its memory and its disk.

    python packages/kvscope-record/bench/record.py [--rounds 200] [--write]
    python packages/kvscope-record/bench/record.py --minutes 10 [--write]

One engine of vLLM with the recorder's wrapped methods, and without them, in turns: of each round of
requests, the time of the engine's steps, and the processor time of the process in them, which has
the recorder's thread too, and no waiting for a processor that others use. A machine's speed drifts,
so a round is compared with its neighbour: figures are medians over the rounds, with 95 % intervals
by bootstrap.

Beside that, the recorder's own processor time is read where it is spent: around what it does in the
engine's thread, and of its own thread.

With --minutes, instead, the engine is kept under load and recorded: resident memory and the bytes
of the recording's files, every few seconds. --write stores the figures in bench/results/.
"""

import argparse
import gc
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "bench"))

from measuring import in_measured_environment, store

COMMON = ["profiler=none", "engine.max_model_len=512", "device.threads=1"]


@dataclass(frozen=True)
class Case:
    """A model, and how many requests a step has."""

    layers: int
    requests: int
    rounds_share: float  # of the rounds that are asked for; long rounds are fewer

    @property
    def words(self) -> list[str]:
        """The overrides of its experiment."""
        return ["model=tiny-llama", f"model.layers={self.layers}"]


CASES = {
    "short steps": Case(2, 16, 1),
    "wide steps": Case(2, 128, 1 / 8),
    "long steps": Case(24, 16, 1 / 8),
}
ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 512,
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 29,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "disable_log_stats": True,
}
PROMPT_TOKENS, OUTPUT_TOKENS = 96, 48
BLOCKS, BATCHED_TOKENS = 10, 16  # for each request of a step
KEEP_BYTES = 1 << 20
SAMPLE_S = 5.0


def experiment(words: list[str]) -> Experiment:
    """The experiment whose model is served."""
    return expand(None, [*words, *COMMON], ROOT / "config").experiments[0].experiment


class Server:
    """An engine of vLLM in this process, whose scheduler can be recorded and left alone again."""

    def __init__(self, model: Path, requests: int) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        sizes = {
            "max_num_seqs": requests,
            "max_num_batched_tokens": BATCHED_TOKENS * requests,
            "num_gpu_blocks_override": BLOCKS * requests,
        }
        self.requests = requests
        self.engine = LLMEngine.from_engine_args(EngineArgs(str(model), **ENGINE, **sizes))
        self.core = self.engine.engine_core.engine_core
        self._submitted = 0
        self._draw = np.random.default_rng(0)

    def submit(self) -> None:
        """Submit a further request, whose prompt no other request has."""
        from vllm import SamplingParams

        how = SamplingParams(
            max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True, detokenize=False
        )
        prompt = self._draw.integers(3, 1000, PROMPT_TOKENS).tolist()
        self.engine.add_request(str(self._submitted), {"prompt_token_ids": prompt}, how)
        self._submitted += 1

    @contextmanager
    def recorded(self, directory: Path) -> Iterator[Any]:
        """Record into a directory; yields the writer. The methods are vLLM's own afterwards."""
        from vllm.version import __version__

        from kvscope.engine.marks import Marks
        from kvscope_record.facts import facts_of
        from kvscope_record.options import RecordOptions
        from kvscope_record.recorder import ServerRecorder
        from kvscope_record.writer import Writer

        directory.mkdir(exist_ok=True)
        scheduler = self.core.scheduler
        writer = Writer(RecordOptions(directory, KEEP_BYTES))
        recorder = ServerRecorder(writer, facts_of(scheduler, __version__))
        observer = recorder.observe(scheduler, Marks())
        try:
            yield writer
        finally:
            writer.close()
            observer.release()

    def round(self) -> list[tuple[float, float]]:
        """Serve the requests of a step; of each step its seconds, and the processor's."""
        seconds: list[tuple[float, float]] = []
        step = self.core.step_fn
        self.core.step_fn = stopwatch(step, seconds)
        gc.collect()
        try:
            for _ in range(self.requests):
                self.submit()
            while self.engine.has_unfinished_requests():
                self.engine.step()
        finally:
            self.core.step_fn = step
        return seconds


def stopwatch(
    function: Callable[..., Any], seconds: list[tuple[float, float]]
) -> Callable[..., Any]:
    """The function, noting the seconds of every call, and the processor's."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        start, processor = time.perf_counter(), time.process_time()
        result = function(*args, **kwargs)
        seconds.append((time.perf_counter() - start, time.process_time() - processor))
        return result

    return timed


def middle(values: np.ndarray) -> dict[str, Any]:
    """The median over the rounds, and its 95 % interval by bootstrap."""
    picks = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    low, high = np.quantile(np.median(values[picks], axis=1), [0.025, 0.975])
    return {"median": float(np.median(values)), "interval_95_percent": [float(low), float(high)]}


def compared(without: np.ndarray, with_it: np.ndarray) -> dict[str, Any]:
    """Seconds of a step of each round, without and with the recorder."""
    return {
        "plain_ms": float(np.median(without) * 1e3),
        "ratio": middle(with_it / without),
        "added_us": middle((with_it - without) * 1e6),
    }


class Own:
    """The recorder's processor time: what it does in the engine's thread, and its own thread."""

    def __init__(self) -> None:
        self.engine_s = self.thread_s = 0.0

    @contextmanager
    def read(self) -> Iterator[None]:
        """Read it of the recorders that are made meanwhile, and are closed by then."""
        from kvscope_record.recorder import ServerRecorder
        from kvscope_record.writer import Writer

        guarded, run = ServerRecorder.guarded, Writer._run

        def timed_guarded(recorder: Any, take: Callable[..., None]) -> Callable[..., None]:
            safely = guarded(recorder, take)

            def timed(*args: Any, **kwargs: Any) -> None:
                start = time.thread_time()
                safely(*args, **kwargs)
                self.engine_s += time.thread_time() - start

            return timed

        def timed_run(writer: Any) -> None:
            run(writer)
            self.thread_s += time.thread_time()

        with (
            mock.patch.object(ServerRecorder, "guarded", timed_guarded),
            mock.patch.object(Writer, "_run", timed_run),
        ):
            yield


def own(server: Server, rounds: int, place: Path) -> dict[str, float]:
    """Processor time of the recorder in a step, in its parts, and its share of the step's."""
    found, seconds = Own(), list[tuple[float, float]]()
    with found.read(), server.recorded(place):
        for _ in range(rounds):
            seconds += server.round()
    step_us = sum(processor for _, processor in seconds) / len(seconds) * 1e6
    engine_us, thread_us = (one / len(seconds) * 1e6 for one in (found.engine_s, found.thread_s))
    return {
        "engine_thread_us": engine_us,
        "own_thread_us": thread_us,
        "share_of_step": (engine_us + thread_us) / (step_us - engine_us - thread_us),
    }


def cost(server: Server, rounds: int, place: Path) -> dict[str, Any]:
    """Rounds with and without the recorder, in turns; the first of each warms up."""
    seconds: dict[bool, list[list[tuple[float, float]]]] = {False: [], True: []}
    for number in range(-1, rounds):
        for observed in (False, True) if number % 2 else (True, False):
            if observed:
                with server.recorded(place):
                    found = server.round()
            else:
                found = server.round()
            if number >= 0:
                seconds[observed].append(found)
        print(f"\r{number + 1}/{rounds}", end="", file=sys.stderr)
    print(file=sys.stderr)
    plain, recorded = (np.array(seconds[which]) for which in (False, True))
    return {
        "own_processor": own(server, rounds, place),
        "processor": compared(*(of[..., 1].mean(axis=1) for of in (plain, recorded))),
        "median_step": compared(*(np.median(of[..., 0], axis=1) for of in (plain, recorded))),
        "rounds": rounds,
        "steps_per_round": plain.shape[1],
        "requests_per_step": server.requests,
    }


def bytes_of(place: Path) -> int:
    """Bytes of the recording's files; a file that the recorder removes meanwhile counts 0."""
    total = 0
    for path in place.glob("segment-*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def load(server: Server, minutes: float, place: Path) -> dict[str, Any]:
    """Keep the engine under load and record it; memory and files, as they were meanwhile."""
    process, waiting = psutil.Process(), 2 * server.requests
    samples: list[tuple[float, int, int]] = []
    began, steps = time.monotonic(), 0
    with server.recorded(place) as writer:
        while (elapsed_s := time.monotonic() - began) < minutes * 60:
            while server.engine.get_num_unfinished_requests() < waiting:
                server.submit()
            server.engine.step()
            steps += 1
            if elapsed_s >= len(samples) * SAMPLE_S:
                samples.append((elapsed_s, process.memory_info().rss, bytes_of(place)))
                print(f"\r{elapsed_s:.0f} s", end="", file=sys.stderr)
        still = writer.open
    print(file=sys.stderr)
    times_s, resident, files_bytes = np.array(samples).T
    half = len(samples) // 2
    return {
        "minutes": minutes,
        "steps": steps,
        "recording_to_the_end": still,
        "keep_bytes": KEEP_BYTES,
        "most_file_bytes": int(files_bytes.max()),
        "segments_written": max(int(path.name[8:16]) for path in place.glob("segment-*")),
        "segments_left": len(list(place.glob("segment-*"))),
        "resident_mib_every_minute": [
            round(float(resident[times_s >= minute * 60][0]) / 2**20, 1)
            for minute in range(int(minutes))
        ],
        "resident_mib_per_minute_in_the_second_half": float(
            np.polyfit(times_s[half:] / 60, resident[half:] / 2**20, 1)[0]
        ),
    }


@contextmanager
def serving(case: Case) -> Iterator[tuple[Server, Path]]:
    """A server of a case's model, and a place for recordings."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "model").mkdir()
        config = json.dumps(experiment(case.words).model.hf_config())
        (place / "model" / "config.json").write_text(config, encoding="utf-8")
        server = Server(place / "model", case.requests)
        yield server, place / "recording"
        server.engine.engine_core.shutdown()


def costs(rounds: int) -> dict[str, Any]:
    """The cost of a step of each case."""
    found = {}
    for name, case in CASES.items():
        with serving(case) as (server, place):
            found[name] = cost(server, math.ceil(rounds * case.rounds_share), place)
    return found


def main() -> None:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--minutes", type=float, help="of load that is recorded, and no rounds")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    in_measured_environment(experiment(CASES["short steps"].words))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if given.minutes is None:
        name, words, result = "record", f"--rounds {given.rounds}", costs(given.rounds)
    else:
        name, words = "record_load", f"--minutes {given.minutes:g}"
        with serving(CASES["short steps"]) as (server, place):
            result = load(server, given.minutes, place)
    result["load_average"] = os.getloadavg()
    print(json.dumps(result, indent=2))
    if given.write:
        store(name, result, f"python packages/kvscope-record/bench/record.py {words}")


if __name__ == "__main__":
    main()
