"""Attention by its definition, in float64: what the kernels' outputs are compared with.

Of a few passes of the warm-up one request is recomputed, in every layer and for every head. Its K
and V are gathered by its block table; those of the tokens of the pass are what the kernel was
given to write, so that what it wrote elsewhere, or not at all, shows.
"""

from typing import Any, NamedTuple, Protocol

import torch

from kvscope.engine.checks import Comparisons, Passes

# Of the largest value: rounding of the output, and of sums over the context.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
LARGEST = 1e9  # an error that is no number counts as this one
MOST_QUERIES = 32  # of a request


class Asked(NamedTuple):
    """One request of a batch."""

    first: int  # of its queries, among the batch's tokens
    queries: int
    length: int  # tokens in the cache after this pass
    blocks: torch.Tensor  # in use, in order


class Asking(Protocol):
    """A batch, as a backend's metadata has it."""

    def asked(self) -> list[Asked]:
        """Its requests."""


class ReferenceChecks(Comparisons):
    """Holds attention's outputs against the reference; `look` is called with every layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.tolerance = 0.0, 0.0
        self.passes = Passes()
        self._request: int | None = None

    def look(
        self,
        layer: int,
        attention: Any,
        given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        batch: Asking,
        output: torch.Tensor,
    ) -> None:
        """A layer has attended: `given` are the query, key and value of its tokens."""
        looks = self.passes.looks
        if not self.passes.reach(layer):
            return
        asked = batch.asked()
        if self.passes.looks > looks or self._request is None:
            self._request = chosen(asked, self.passes.looks)
        request = asked[self._request]
        rows = sampled(request)
        own = slice(request.first, request.first + request.queries)
        query, key, value = (tensor[own] for tensor in given)
        before = request.length - request.queries
        keys, values = (
            torch.cat((cached[:before], new))
            for cached, new in zip(
                attention.gathered(kv_cache, request.blocks), (key, value), strict=True
            )
        )
        expected = attend(query[rows], keys, values, before + rows, attention.scale)
        found = output[own].view(query.shape)[rows].double()
        self._compare(found, expected, TOLERANCES[output.dtype], f"layer {layer}")

    def _compare(
        self, found: torch.Tensor, expected: torch.Tensor, tolerance: float, where: str
    ) -> None:
        """`found` and `expected`: (queries, heads, head size)."""
        errors = (found - expected).abs() / expected.abs().max().clamp(min=1e-30)
        errors = errors.nan_to_num(nan=LARGEST).clamp(max=LARGEST).amax(dim=(0, 2))
        head = int(errors.argmax())
        error = float(errors[head])
        self.largest, self.tolerance = max(self.largest, error), tolerance
        words = (
            f"warm-up pass {self.passes.number}, {where}, head {head}: off by {error:.2g} of the "
            f"largest value, {tolerance:g} at most is rounding"
        )
        self.add(error <= tolerance, words)

    @property
    def facts(self) -> dict[str, Any]:
        """As run.json has it; errors and tolerance are shares of the largest output."""
        return super().facts | {"largest_error": self.largest, "tolerance": self.tolerance}


def chosen(asked: list[Asked], turn: int) -> int:
    """The request to look at: in turns the longest, the one with most queries, and each."""
    rows = range(len(asked))
    if turn % 3 == 1:
        return max(rows, key=lambda row: (asked[row].queries, asked[row].length))
    if turn % 3 == 2:
        return max(rows, key=lambda row: asked[row].length)
    return turn % len(asked)


def sampled(request: Asked) -> torch.Tensor:
    """The queries to look at, spread evenly from the first to the last."""
    count = min(request.queries, MOST_QUERIES)
    return torch.linspace(0, request.queries - 1, count).round().long()


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """softmax(scale · Q Kᵀ) V, where a query at position p sees the tokens 0 … p.

    query (queries, heads, head size), keys and values (tokens, KV heads, head size); as many heads
    after one another share a KV head as there are of the ones for each of the others.
    """
    group = query.shape[1] // keys.shape[1]
    hidden = torch.arange(len(keys))[None, :] > positions[:, None]
    heads = []
    for head in range(query.shape[1]):
        shared = head // group
        q, k, v = (each.double() for each in (query[:, head], keys[:, shared], values[:, shared]))
        weights = (q @ k.T * scale).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        heads.append(weights @ v)
    return torch.stack(heads, dim=1)
