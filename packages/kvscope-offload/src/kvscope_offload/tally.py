"""The rows of some passes of a batch under a split, found by counting blocks.

The blocks are those that a `Generation` allocates, in its order, but for where in its pool each one
lies. That is left open, as neither seconds nor bytes depend on it; a whole batch is laid out in
milliseconds, so that many splits can be tried.
"""

from collections.abc import Iterable, Iterator

from kvscope_offload.blocks import KINDS, Content, Kind, Place, Row, Sequence, Span, Spans
from kvscope_offload.placement import Placement
from kvscope_offload.split import Split


class Tally:
    """Blocks of each kind that a request has; `left` are those that are free in each pool."""

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

    def grow(self, placement: Placement, number: int) -> None:
        """Take the blocks for the tokens that this pass stores."""
        size, prompt = self.sequence.block_size, self.sequence.prompt_tokens
        if not number:
            contents = placement.prompt(-(-prompt // size))
            for content in Content:  # in a prompt's order, but for ids, which come first
                self.add(content, contents.count(content))
        elif (prompt + number - 1) % size == 0:
            self.add(placement.further(), 1)

    def release(self) -> None:
        """Give the blocks back."""
        for kind, blocks in self.blocks.items():
            self.left[kind] += blocks

    def row(self, number: int) -> Row:
        """Row of a pass: pass 0 stores the whole prompt, each later one a token."""
        prompt = self.sequence.prompt_tokens
        kept = self._kept(prompt + max(0, number - 1))
        ids = self.ids * self.sequence.block_size
        if not number:
            return Row(self.sequence.index, 0, prompt, dict.fromkeys(KINDS, ()), kept, ids)
        target = {kind: (Span(0, 0, 1),) * (kind == self.last) for kind in KINDS}
        return Row(self.sequence.index, prompt + number - 1, 1, kept, target, ids)

    def _kept(self, tokens: int) -> Spans:
        """Spans of so many tokens; only the last block may be partly filled."""
        size = self.sequence.block_size
        kept = {kind: blocks * size for kind, blocks in self.blocks.items()}
        if self.last is not None:
            kept[self.last] -= sum(kept.values()) + self.ids * size - tokens
        return {kind: (Span(0, 0, kept[kind]),) for kind in KINDS}


def sampled_rows(
    sequences: list[Sequence], split: Split, sizes: dict[Kind, int], numbers: Iterable[int]
) -> Iterator[list[Row]]:
    """The rows of these passes, in rising order, with pools of so many blocks."""
    placement, left, wanted = Placement(split), dict(sizes), set(numbers)
    running = [Tally(sequence, left) for sequence in sequences]
    for number in range(max(wanted) + 1):
        for tally in running:
            if number and tally.sequence.output_tokens == number:
                tally.release()
        running = [tally for tally in running if tally.sequence.output_tokens > number]
        for tally in running:
            tally.grow(placement, number)
        if number in wanted:
            yield [tally.row(number) for tally in running]
