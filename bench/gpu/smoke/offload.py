"""Runs of the offloading engine: K and V on the GPU, on the host, rebuilt from activations."""

from smoke.campaigns import serve
from smoke.lots import OFFLOAD


def main(seconds: float) -> list[str]:
    """Measure and judge the lot."""
    return serve("offload", OFFLOAD, seconds)
