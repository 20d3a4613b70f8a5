"""A forward pass's phase: prefill, decode, or both.

A request prefills in a pass that computes its prompt, or again what a preemption lost, and decodes
in one that computes its newest token only. A pass is of its requests' phase, or mixed.
"""

from collections.abc import Iterable

PREFILL, DECODE = REQUEST_PHASES = ("prefill", "decode")
MIXED = "mixed"
PASS_PHASES = (*REQUEST_PHASES, MIXED)


def phase_of_requests(phases: Iterable[str]) -> str:
    """The phase of a pass by those of its requests, of which it has one at least."""
    found = {*phases}
    return found.pop() if len(found) == 1 else MIXED


def phase_of_tokens(prefill_tokens: int, decode_tokens: int) -> str:
    """The phase of a pass by the tokens that it computes of prefilling and decoding requests."""
    if not decode_tokens:
        return PREFILL
    return MIXED if prefill_tokens else DECODE
