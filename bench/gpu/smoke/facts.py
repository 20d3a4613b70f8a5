"""The machine: GPU, driver, link, versions, limits; and the timer that events are stamped by."""

import os
import platform
import shutil
import subprocess
import traceback
from importlib import metadata
from typing import Any

from smoke.place import DEVICE, sentence, store

ASKED = (
    *("name", "driver_version", "memory.total", "pcie.link.gen.current", "pcie.link.width.current"),
    *("pcie.link.gen.max", "pcie.link.width.max", "clocks.max.sm"),
)
DISTRIBUTIONS = ("torch", "triton", "vllm", "kvscope", "transformers", "numpy", "numba", "pandas")
PROGRAMS = ("cc", "nvcc", "nsys", "ncu")


def main(seconds: float) -> list[str]:
    """Store the facts; what cannot be found out is a fault."""
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "lockable memory": told("bash", "-c", "ulimit -l"),
        "memory": told("free", "-g"),
    }
    needed = ("torch", "triton", "vllm", "kvscope")
    faults = [f"{name} is not installed" for name in needed if not result["versions"][name]]
    for ask in (gpu, of_torch):
        store("facts", result)
        try:
            result |= ask()
        except Exception as error:
            traceback.print_exc()
            faults.append(sentence(error))
    store("facts", result)
    print(result)
    return faults


def gpu() -> dict[str, Any]:
    """The GPU as nvidia-smi describes it; RuntimeError without an answer."""
    query = f"--query-gpu={','.join(ASKED)}"
    words = told("nvidia-smi", query, "--format=csv,noheader").splitlines()
    values = [word.strip() for word in words[0].split(",")] if words else []
    if len(values) != len(ASKED):
        raise RuntimeError(f"nvidia-smi says {' '.join(words)!r}")
    return {"gpu": dict(zip(ASKED, values, strict=True))}


def of_torch() -> dict[str, Any]:
    """Versions of PyTorch and vLLM, the memory that CUDA takes, and the resolution of the GPU's
    timer."""
    import torch
    from events import timer
    from vllm.platforms import current_platform

    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # cuBLAS has its own
    free, total = torch.cuda.mem_get_info()
    return {
        "memory_bytes": total,
        "own_bytes": total - free - torch.cuda.memory_reserved(),
        "device": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "cuda": torch.version.cuda,
        "platform": type(current_platform).__name__,
        "timer": timer(DEVICE),
    }


def version(distribution: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def told(*command: str) -> str:
    """Output of a command; empty if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
