"""Runs the steps: `python -m smoke.steps SECONDS [STEP …]`.

PyTorch, Triton and vLLM are imported once, which takes longer than most steps. Each step is a fork
with its own limit and log: what kills one costs none of the others, and what it had stored stays.
Forks cannot use CUDA if an import has initialized it; then each step is a process that imports.
"""

import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from smoke.place import FAILED, NO_TIME, PASSED, REHEARSED, WORK, sentence, store

LEAST_S = 3.0  # for which no step is begun
END_S = 6.0  # for a step to end by itself at its limit
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED

# A rehearsal takes no time of a GPU, and a shared CPU may be slow.
NOT_REHEARSED = ("offload",)
SLOWER = 4 if REHEARSED else 1
IMPORTS_S = 60 * SLOWER
LIMITS_S = {  # in their order
    "facts": 15,
    "copies": 20,
    "offloading": 20,
    "kernels": 60,
    "recording": 50,
    "engine": 260,
    "study": 120,
    "server": 60,
    "offload": 90,
    "profiler": 80,
}
IMPORTED = (
    *("torch", "triton", "numpy", "numba", "pandas", "pyarrow", "transformers", "vllm"),
    *("vllm.platforms", "vllm._custom_ops", "vllm.v1.worker.gpu_worker"),
    *("vllm.v1.attention.backends.triton_attn", "kvscope_kernels.engine.cuda.launch"),
)


@dataclass
class Outcome:
    """Outcome of a step: how it ended, after how many seconds, and its complaints in words."""

    step: str
    outcome: str
    seconds: float
    faults: list[str]


def main(seconds: float, names: list[str]) -> int:
    """Run the steps within so many seconds; 0 if none failed."""
    end = time.monotonic() + seconds
    outcomes = [imported()]
    start, again = ("spawn", IMPORTS_S) if cuda_is_initialized() else ("fork", 0)
    for name in names or default_steps():
        limit = min(LIMITS_S[name] * SLOWER + again, end - time.monotonic())
        outcomes.append(run(name, limit, start) if limit > LEAST_S else skipped(name))
        tell(outcomes)
    return int(any(outcome.outcome == FAILED for outcome in outcomes))


def default_steps() -> list[str]:
    """Steps that run if the command names none."""
    return [name for name in LIMITS_S if not (REHEARSED and name in NOT_REHEARSED)]


def tell(outcomes: list[Outcome]) -> None:
    """Store the outcomes, and print the last."""
    store("steps", [asdict(outcome) for outcome in outcomes])
    last = outcomes[-1]
    print(f"{last.step}: {last.outcome}, {last.seconds:.0f} s", flush=True)
    for fault in last.faults:
        print(f"  {fault}", flush=True)


def skipped(name: str) -> Outcome:
    """A step for which there is no time."""
    return Outcome(name, NO_TIME, 0.0, [])


def imported() -> Outcome:
    """Import the modules that steps share, and store the time of each; slow ones are left to the
    steps."""
    began, rows, faults = time.monotonic(), {}, []
    signal.signal(signal.SIGALRM, late)
    signal.alarm(IMPORTS_S)
    for name in IMPORTED:
        start = time.monotonic()
        try:
            importlib.import_module(name)
            set_threads(1)
        except Exception as error:
            traceback.print_exc()
            faults.append(f"cannot import {name}: {sentence(error)}")
            if isinstance(error, TimeoutError):
                break
        rows[name] = round(time.monotonic() - start, 1)
        store("imports", rows)
    signal.alarm(0)
    outcome = Outcome("imports", FAILED if faults else PASSED, time.monotonic() - began, faults)
    tell([outcome])
    return outcome


def late(*_: object) -> None:
    """End the imports."""
    raise TimeoutError(f"imports take more than {IMPORTS_S} s")


def cuda_is_initialized() -> bool:
    """Whether this process has initialized CUDA; to ask does not."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALIZED


def set_threads(count: int) -> None:
    """Have PyTorch use so many: one before a fork, which has none of its parent's."""
    import torch

    torch.set_num_threads(count)


def run(name: str, limit: float, start: str) -> Outcome:
    """Run a step in a process of its own, killed at its limit."""
    began = time.monotonic()
    context: Any = multiprocessing.get_context(start)
    process = context.Process(target=step, args=(name, limit))
    process.start()
    process.join(limit)
    late = process.is_alive()
    if late:
        end(process)
    took = time.monotonic() - began
    path = WORK / f"{name}.faults"
    faults = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if late:
        faults.append(f"killed at its limit of {limit:.0f} s")
    elif process.exitcode and not faults:
        faults.append(f"ended by signal {-process.exitcode}" if process.exitcode < 0 else "ended")
    return Outcome(name, FAILED if faults else PASSED, took, faults)


def end(process: Any) -> None:
    """End a step, first politely, and what it has started."""
    process.terminate()
    process.join(END_S)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.join()


def step(name: str, limit: float) -> None:
    """In the step's process: run it, and leave its faults."""
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended at its limit"))
    with (WORK / f"{name}.log").open("w", buffering=1, encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        try:
            set_threads(len(os.sched_getaffinity(0)))
            module = importlib.import_module(f"smoke.{name}")
            judge: Callable[[float], list[str]] = module.main
            faults = judge(limit)
        except Exception as error:
            traceback.print_exc()
            faults = [sentence(error)]
        (WORK / f"{name}.faults").write_text(json.dumps(faults), encoding="utf-8")
        for fault in faults:
            print(f"FAULT {fault}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if faults else 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
