"""Oracles of the engine's results, which its warm-up recomputes by a plain reference.

The subject is a run's run.json. An oracle does not apply where nothing was compared: vLLM's own
kernels, a run without warm-up, or a warm-up without copies.
"""

from kvscope.tables.oracle import NONE, Need, Oracle, Violations
from kvscope.tables.runschema import ComparisonRecord, RunRecord

WIDEST = 0.03
"""Tolerance of bfloat16, the widest of all types."""


def attention_differs(record: RunRecord) -> Violations | None:
    """Attention's outputs equal its definition; sampled in warm-up, for every layer and head."""
    checks = record.engine.reference_checks
    error, most = checks.largest_error, checks.tolerance
    if not checks.differing and not 0 <= error <= min(most, WIDEST):
        words = f"the largest error is {error:g} of the largest output, {most:g} is allowed"
        return Violations(1, words)
    return _differing(checks)


def swap_differs(record: RunRecord) -> Violations | None:
    """Blocks that were swapped out have the same content when they are swapped in."""
    return _differing(record.engine.swap_checks)


def _differing(found: ComparisonRecord) -> Violations | None:
    if not found.compared:
        return None
    return Violations(found.differing, found.first) if found.differing else NONE


ENGINE_ORACLES: tuple[Oracle[RunRecord], ...] = (
    Oracle(attention_differs, Need("kvscope's own attention on the CPU, and a warm-up")),
    Oracle(swap_differs, Need("a request that was swapped in warm-up")),
)
