"""Parts in which K and V of a preempted request are rebuilt from its activations."""

from collections.abc import Iterator

# Tokens whose K and V are rebuilt at a time: enough for a product at the device's full speed, and
# a bound of the temporary memory.
REBUILD_TOKENS = 1024


def rebuild_parts(tokens: int, block_size: int = 1) -> Iterator[tuple[int, int]]:
    """(first, last) of the blocks that are rebuilt at a time, of a request of so many tokens."""
    count, step = -(-tokens // block_size), max(1, REBUILD_TOKENS // block_size)
    for first in range(0, count, step):
        yield first, min(first + step, count)
