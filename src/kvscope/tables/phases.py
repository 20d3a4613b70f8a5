"""The phase of a forward pass: prefill, decode, or mixed.

A request prefills in a pass that computes its prompt, or recomputes tokens that a preemption lost.
It decodes in a pass that computes its newest token only. A pass is mixed if its requests are in
both phases.
"""

from collections.abc import Iterable

PREFILL, DECODE = REQUEST_PHASES = ("prefill", "decode")
MIXED = "mixed"
PASS_PHASES = (*REQUEST_PHASES, MIXED)


def phase_of_requests(phases: Iterable[str]) -> str:
    """The phase of a pass from the phases of its requests (at least one)."""
    distinct = {*phases}
    return distinct.pop() if len(distinct) == 1 else MIXED


def phase_of_tokens(prefill_tokens: int, decode_tokens: int) -> str:
    """The phase of a pass from its numbers of prefill and decode tokens."""
    if not decode_tokens:
        return PREFILL
    return MIXED if prefill_tokens else DECODE
