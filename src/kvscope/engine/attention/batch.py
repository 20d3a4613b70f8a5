"""A batch request by request, for attention in PyTorch."""

from collections.abc import Iterable
from typing import NamedTuple

import torch


class BatchRow(NamedTuple):
    """One request of a batch."""

    first: int  # of its queries, among the batch's tokens
    queries: int
    length: int  # tokens in the cache after this pass
    blocks: torch.Tensor  # in use, in order

    @property
    def own(self) -> slice:
        """Its tokens in the batch."""
        return slice(self.first, self.first + self.queries)


def batch_rows(
    starts: Iterable[int], lengths: Iterable[int], table: torch.Tensor, block_size: int
) -> list[BatchRow]:
    """The requests of a batch: `starts` (rows + 1) of their queries, `lengths` (rows) of their
    context after the pass, `table` (rows, blocks) of their blocks."""
    starts = [*starts]
    rows = zip(starts, starts[1:], lengths, table, strict=False)
    return [
        BatchRow(start, end - start, length, blocks[: -(-length // block_size)].long())
        for start, end, length, blocks in rows
    ]
