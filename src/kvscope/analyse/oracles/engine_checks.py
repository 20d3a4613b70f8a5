"""Oracles of the engine's results, which its warm-up recomputes by a plain reference.

The subject is a run's run.json. An oracle does not apply where nothing was compared: vLLM's own
kernels, a run without warm-up, or a warm-up without copies.
"""

from typing import Any

from kvscope.oracle import NONE, Need, Oracle, Violations

Facts = dict[str, Any]
WIDEST = 0.03
"""No type has a wider tolerance than bfloat16."""


def attention_differs(facts: Facts) -> Violations | None:
    """Attention computes what its definition says; sampled in warm-up, for every layer and head."""
    found = facts.get("engine", {}).get("reference_checks", {})
    error, most = found.get("largest_error", 0.0), found.get("tolerance", 0.0)
    if not found.get("differing") and not 0 <= error <= min(most, WIDEST):
        words = f"the largest error is {error:g} of the largest output, {most:g} is allowed"
        return Violations(1, words)
    return _differing(facts, "reference_checks")


def swap_differs(facts: Facts) -> Violations | None:
    """Blocks that were swapped out have the same content when they are swapped in."""
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
