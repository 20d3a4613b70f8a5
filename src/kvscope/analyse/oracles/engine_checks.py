"""Oracles of the engine itself: what its warm-up found when results were recomputed.

A subject is a run's run.json. Of what was never compared (vLLM's own kernels, no warm-up, no copy)
nothing is said.
"""

from typing import Any

from kvscope.oracle import NONE, Need, Oracle, Violations

Facts = dict[str, Any]


def attention_differs(facts: Facts) -> Violations | None:
    """Attention's outputs are those of its definition: sampled in warm-up, every layer and head."""
    return _differing(facts, "reference_checks")


def swap_differs(facts: Facts) -> Violations | None:
    """Blocks that were swapped out come back with the content that they left with."""
    return _differing(facts, "swap_checks")


def _differing(facts: Facts, key: str) -> Violations | None:
    found = facts.get("engine", {}).get(key, {})
    if not found.get("compared"):
        return None
    count = found["differing"]
    return Violations(count, found["first"]) if count else NONE


ENGINE_ORACLES: tuple[Oracle[Facts], ...] = (
    Oracle(attention_differs, Need("kvscope's own attention on the CPU, and a warm-up")),
    Oracle(swap_differs, Need("a request that was swapped in warm-up")),
)
