"""The reference of attention: its definition in float64, compared with the kernels' outputs.

In a few passes of the warm-up one request is recomputed, in every layer and for every head. K and V
of earlier tokens are gathered by the request's block table; K and V of the pass's own tokens are
the inputs of the kernel, so that tokens written to a wrong place, or not at all, are detected.
"""

from collections.abc import Callable
from typing import Any

import torch

from kvscope.engine.attention.batch import BatchRow
from kvscope.engine.checks import Comparisons, PassSelection

# Shares of the largest value, for rounding of the output and of sums over the context.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
LARGEST = 1e9  # an error that is no number counts as this one
MOST_QUERIES = 32  # of a request


class ReferenceChecks(Comparisons):
    """Compares attention outputs with the reference; every layer calls `compare`."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.tolerance = 0.0, 0.0
        self.passes = PassSelection()
        self._row: int | None = None

    def compare(
        self,
        layer: int,
        attention: Any,
        given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        batch: Callable[[], list[BatchRow]],
        output: torch.Tensor,
    ) -> None:
        """A layer has attended: `given` are the query, key and value of its tokens, (tokens, heads
        or KV heads, head size); `attention.gathered` reads `kv_cache`."""
        count = self.passes.count
        if not self.passes.reach(layer):
            return
        rows = batch()
        if self.passes.count > count or self._row is None:
            self._row = select_request(rows, self.passes.count)
        row = rows[self._row]
        queries = sample_queries(row)
        query, key, value = (tensor[row.own] for tensor in given)
        before = row.length - row.queries
        keys, values = (
            torch.cat((cached[:before], new))
            for cached, new in zip(
                attention.gathered(kv_cache, row.blocks), (key, value), strict=True
            )
        )
        expected = reference_attention(
            query[queries], keys, values, before + queries, attention.scale
        )
        sampled = output[row.own].view(query.shape)[queries].double()
        self._judge(sampled, expected, TOLERANCES[output.dtype], f"layer {layer}")

    def _judge(
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
        """The entry of run.json; errors and tolerance are shares of the largest output."""
        return super().facts | {"largest_error": self.largest, "tolerance": self.tolerance}


def select_request(rows: list[BatchRow], turn: int) -> int:
    """The row of the request to recompute: in turn that with most queries, the longest, any."""
    numbers = range(len(rows))
    if turn % 3 == 1:
        return max(numbers, key=lambda n: (rows[n].queries, rows[n].length))
    if turn % 3 == 2:
        return max(numbers, key=lambda n: rows[n].length)
    return turn % len(rows)


def sample_queries(row: BatchRow) -> torch.Tensor:
    """At most MOST_QUERIES query indices of a request, evenly spaced from first to last."""
    count = min(row.queries, MOST_QUERIES)
    return torch.linspace(0, row.queries - 1, count).round().long()


def reference_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """softmax(scale · Q Kᵀ) V, where a query at position p sees the tokens 0 … p.

    query (queries, heads, head size), keys and values (tokens, KV heads, head size); `heads / KV
    heads` heads in a row share a KV head. Returns (queries, heads, head size) in float64.
    """
    group = query.shape[1] // keys.shape[1]
    hidden = torch.arange(len(keys))[None, :] > positions[:, None]
    heads = []
    for head in range(query.shape[1]):
        shared = head // group
        q, k, v = (x.double() for x in (query[:, head], keys[:, shared], values[:, shared]))
        weights = (q @ k.T * scale).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        heads.append(weights @ v)
    return torch.stack(heads, dim=1)
