"""Which request each pass of a published log computed, by vLLM 0.4.2's order of requests.

A log has the tokens of each pass and not whose they are. As long as the cache has room, that
follows from the requests' lengths and the token budget; it is believed only if every pass of the
log has the tokens that follow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DEFAULT, MIXED, CHUNKED = "default", "mixed", "chunked"


@dataclass
class _Request:
    number: int
    prompt: int
    output: int
    computed: int = 0
    sampled: int = 0

    @property
    def decodes(self) -> bool:
        return 0 < self.sampled < self.output

    @property
    def left(self) -> int:
        """Tokens of its prompt that are not computed yet."""
        return max(0, self.prompt - self.computed)


@dataclass(frozen=True)
class Row:
    """A request in a pass: its number, tokens computed, and those in the cache before."""

    request: int
    tokens: int
    context: int
    sampled: int


def batches(lengths: Sequence[tuple[int, int]], strategy: str, budget: int) -> Iterator[list[Row]]:
    """The rows of each pass, with room for every request."""
    requests = [_Request(n, *length) for n, length in enumerate(lengths, 1)]
    while True:
        rows = _default(requests, budget) if strategy == DEFAULT else None
        if rows is None:
            rows = _shared(requests, budget, cut=strategy == CHUNKED)
        if not rows:
            return
        yield rows


def _default(requests: list[_Request], budget: int) -> list[Row]:
    """Prompts that fit the budget, else every request that decodes."""
    rows: list[Row] = []
    for one in requests:
        if not one.left:
            continue
        if one.left > budget:
            break
        budget -= one.left
        rows.append(_advance(one, one.left))
    return rows or [_advance(one, 1) for one in requests if one.decodes]


def _shared(requests: list[_Request], budget: int, cut: bool) -> list[Row]:
    """Every request that decodes, then prompts while the budget lasts, cut to it or whole."""
    rows = [_advance(one, 1) for one in requests if one.decodes]
    budget -= len(rows)
    for one in requests:
        if not one.left or one.sampled:
            continue
        tokens = min(one.left, budget) if cut else one.left
        if not 0 < tokens <= budget:
            break
        budget -= tokens
        rows.append(_advance(one, tokens))
    return sorted(rows, key=lambda row: row.request)


def _advance(one: _Request, tokens: int) -> Row:
    context = one.computed
    one.computed += tokens
    sampled = int(one.computed >= one.prompt)
    one.sampled += sampled
    return Row(one.number, tokens, context, sampled)
