"""Runs of vLLM, each served once more under Nsight Systems."""

from kvscope.run.profiler import find_nsys
from smoke.campaigns import serve
from smoke.lots import PROFILER


def main(seconds: float) -> list[str]:
    """Measure and judge the lot; its fault is said where there is no nsys."""
    if find_nsys() is None:
        return ["there is no nsys: run `make nsys`, or name one by $KVSCOPE_NSYS"]
    return serve("profiler", PROFILER, seconds)
