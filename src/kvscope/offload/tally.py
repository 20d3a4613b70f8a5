"""The rows of some passes of a batch under a split, found by counting blocks.

The blocks are those that a `Generation` allocates, in its order, but for where in its pool each one
lies. That is left open, as neither seconds nor bytes depend on it; a whole batch is laid out in
milliseconds, so that many splits can be tried.
"""

from collections.abc import Iterator

from kvscope.offload.blocks import KINDS, Content, Kind, Place, Row, Sequence, Span
from kvscope.offload.placement import Placement
from kvscope.offload.split import Split


class Tally:
    """How many blocks of each kind a request has; `left` are those that are free in each pool."""

    def __init__(self, sequence: Sequence, left: dict[Kind, int]) -> None:
        self.sequence, self.left = sequence, left
        self.blocks = dict.fromkeys(KINDS, 0)
        self.ids = 0  # blocks of which only the ids are kept
        self.last: Kind | None = None  # of the block that the next token goes to

    def add(self, content: Content, blocks: int) -> None:
        """Take free blocks, the device's first."""
        if content is Content.TOKEN:
            self.ids += blocks
            return
        for place in Place:
            kind = Kind(content, place)
            taken = min(blocks, self.left[kind])
            if taken:
                blocks -= taken
                self.left[kind] -= taken
                self.blocks[kind] += taken
                self.last = kind

    def release(self) -> None:
        """Give the blocks back."""
        for kind, blocks in self.blocks.items():
            self.left[kind] += blocks

    def row(self, number: int) -> Row:
        """What a pass of decoding works with; only the last block may be partly filled."""
        size, tokens = self.sequence.block_size, self.sequence.prompt_tokens + number - 1
        kept = {kind: blocks * size for kind, blocks in self.blocks.items()}
        if self.last is not None:
            kept[self.last] -= sum(kept.values()) + self.ids * size - tokens
        context = {kind: (Span(0, 0, kept[kind]),) for kind in KINDS}
        targets = {kind: (Span(tokens, 0, 1),) * (kind == self.last) for kind in KINDS}
        return Row(self.sequence.index, tokens, 1, context, targets, self.ids * size)


def sampled_rows(
    sequences: list[Sequence], split: Split, sizes: dict[Kind, int], numbers: set[int]
) -> Iterator[list[Row]]:
    """The rows of these passes of decoding, with pools of so many blocks."""
    placement, left = Placement(split), dict(sizes)
    running = [Tally(sequence, left) for sequence in sequences]
    for tally in running:
        size = tally.sequence.block_size
        contents = placement.prompt(-(-tally.sequence.prompt_tokens // size))
        for content in Content:  # in the order of a prompt's blocks, but for ids, which come first
            tally.add(content, contents.count(content))
    for number in range(1, max(numbers) + 1):
        for tally in running:
            if tally.sequence.output_tokens == number:
                tally.release()
        running = [tally for tally in running if tally.sequence.output_tokens > number]
        for tally in running:
            if (tally.sequence.prompt_tokens + number - 1) % tally.sequence.block_size == 0:
                tally.add(placement.further(), 1)
        if number in numbers:
            yield [tally.row(number) for tally in running]
