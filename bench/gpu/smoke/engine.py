"""Runs of vLLM with kvscope: overflow policies, batching, KV events, sizes of Llama-2-7B."""

from smoke.campaigns import serve
from smoke.lots import ENGINE
from smoke.place import REHEARSED


def main(seconds: float) -> list[str]:
    """Measure and judge the lots; in a rehearsal the first two."""
    return serve("engine", ENGINE[: 2 if REHEARSED else None], seconds)
