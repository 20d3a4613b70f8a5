"""Oracles of settings: the engine is the one that was asked for, and keeps to its limits."""

from kvscope.analyse.oracles.run import Run, where
from kvscope.oracle import NONE, Violations

GIB = 2**30
# What run.json says of the engine, and the setting that it must be.
MADE = {
    "block_size": ("cache", "block_size"),
    "layers": ("model", "layers"),
    "kv_blocks_total": ("cache", "blocks"),
    "host_blocks_total": ("overflow", "host_blocks"),
}
# The same, where the size was asked for in GiB.
MADE_TO_FIT = {"kv_blocks_total": ("cache", "gib"), "host_blocks_total": ("overflow", "host_gib")}
MOST_TOKENS = (("engine", "max_num_batched_tokens"), ("batching", "chunk_tokens"))
MOST_REQUESTS = (("engine", "max_num_seqs"),)


def engine_differs(run: Run) -> Violations | None:
    """The engine has the layers, the cache and the host pool that the experiment asks for."""
    if not run.settings:
        return None
    asked = {key: run.setting(*place) for key, place in MADE.items()}
    block_bytes = run.engine.get("block_bytes")
    for key, place in MADE_TO_FIT.items():
        if (gib := run.setting(*place)) is not None and block_bytes:
            asked[key] = gib * GIB // block_bytes
    wrong = [
        f"{key} is {run.engine[key]}, asked for were {due:.0f}"
        for key, due in asked.items()
        if due is not None and key in run.engine and run.engine[key] != due
    ]
    return Violations(len(wrong), wrong[0]) if wrong else NONE


def limit_exceeded(run: Run) -> Violations | None:
    """No pass computes more tokens, or serves more requests, than the experiment lets it."""
    tokens, requests = _least(run, MOST_TOKENS), _least(run, MOST_REQUESTS)
    if tokens is None and requests is None:
        return None
    steps = run.steps
    wrong = steps["scheduled_tokens"] > (float("inf") if tokens is None else tokens)
    wrong |= steps["requests"] > (float("inf") if requests is None else requests)
    words = "{} tokens of {} requests, at most {} of {}"
    return where(
        steps,
        wrong,
        lambda r: words.format(r["scheduled_tokens"], r["requests"], tokens, requests),
    )


def _least(run: Run, places: tuple[tuple[str, str], ...]) -> float | None:
    limits = [found for place in places if (found := run.setting(*place)) is not None]
    return min(limits, default=None)
