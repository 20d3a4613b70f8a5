"""Paged blocks of two kinds, in two places, and the block table of a request."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from kvscope.api.errors import KvscopeError


class Content(Enum):
    """Contents that are kept of a block's tokens."""

    KV = "kv"
    ACTIVATION = "activation"  # the input of attention, after its norm
    TOKEN = "token"  # the ids alone: the tokens are computed again

    __hash__ = object.__hash__  # by identity: Enum hashes its name, in Python, and this is a key


class Place(Enum):
    """Memory that a block is in."""

    DEVICE = "device"
    HOST = "host"

    __hash__ = object.__hash__


class Kind(NamedTuple):
    """The kind of a block pool."""

    content: Content
    place: Place


KINDS = tuple(
    Kind(content, place) for content in (Content.KV, Content.ACTIVATION) for place in Place
)


class Block(NamedTuple):
    """Block of a request: its contents, and its number in its pool (none for TOKEN)."""

    content: Content
    place: Place | None
    number: int


class BlockPool:
    """Blocks 0 … size-1 of one kind, free or in use."""

    def __init__(self, kind: Kind, size: int) -> None:
        self.kind, self.size = kind, size
        self._free = list(range(size))  # a heap: low numbers first keeps a request's blocks close

    @property
    def used(self) -> int:
        """Blocks that are not free."""
        return self.size - len(self._free)

    def allocate(self) -> Block | None:
        """Free block; None if there is none left."""
        return Block(*self.kind, heapq.heappop(self._free)) if self._free else None

    def release(self, block: Block) -> None:
        """Take a block back."""
        heapq.heappush(self._free, block.number)


class Pools:
    """The block pools of all four kinds; `sizes` are in blocks."""

    def __init__(self, sizes: dict[Kind, int]) -> None:
        self.pools = {kind: BlockPool(kind, sizes.get(kind, 0)) for kind in KINDS}

    @property
    def used(self) -> int:
        """Blocks in use, of all kinds."""
        return sum(pool.used for pool in self.pools.values())

    def allocate(self, content: Content) -> Block:
        """A block for this content, on the device if it has room; KvscopeError if all is full."""
        if content is Content.TOKEN:
            return Block(content, None, -1)
        for place in Place:
            block = self.pools[Kind(content, place)].allocate()
            if block is not None:
                return block
        raise KvscopeError(f"no free block is left for {content.value}")

    def release(self, blocks: list[Block]) -> None:
        """Take a request's blocks back."""
        for block in blocks:
            if block.place is not None:
                self.pools[Kind(block.content, block.place)].release(block)


class Span(NamedTuple):
    """Consecutive tokens of a request that lie in consecutive rows of a pool."""

    first_token: int
    row: int
    tokens: int


Spans = Mapping[Kind, tuple[Span, ...]]


@dataclass
class Sequence:
    """A request while it is generated: its lengths, its block table, and where its tokens lie.

    `tokens` are in its blocks; block i holds tokens i * block_size and those that follow.
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    block_size: int
    blocks: list[Block] = field(default_factory=list)
    tokens: int = 0
    spans: dict[Kind, list[Span]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def total_tokens(self) -> int:
        """Tokens in its blocks at its end: the last output token is never stored."""
        return self.prompt_tokens + self.output_tokens - 1

    def row(self, tokens: int) -> "Row":
        """Row of a pass that computes so many more tokens of it."""
        prefix = takewhile(lambda block: block.content is Content.TOKEN, self.blocks)
        ids = self.block_size * sum(1 for _ in prefix)
        context = {kind: tuple(spans) for kind, spans in self.spans.items()}
        return Row(self.index, self.tokens, tokens, context, self._targets(tokens), ids)

    def advance(self, row: "Row") -> None:
        """Its new tokens are in their blocks."""
        self.tokens += row.new_tokens
        for kind, spans in row.targets.items():
            for span in spans:
                _append(self.spans[kind], span)

    def _targets(self, tokens: int) -> Spans:
        """Spans for the next tokens, as few as the pools' holes allow."""
        spans_of: dict[Kind, list[Span]] = {kind: [] for kind in KINDS}
        size, token, end = self.block_size, self.tokens, self.tokens + tokens
        while token < end:
            block, offset = self.blocks[token // size], token % size
            count = min(size - offset, end - token)
            if block.place is not None:
                row = block.number * size + offset
                _append(spans_of[Kind(block.content, block.place)], Span(token, row, count))
            token += count
        return {kind: tuple(spans) for kind, spans in spans_of.items()}


def _append(spans: list[Span], span: Span) -> None:
    """Add a span, as a part of the last one if it continues that."""
    if spans:
        first, row, tokens = spans[-1]
        if (span.first_token, span.row) == (first + tokens, row + tokens):
            spans[-1] = Span(first, row, tokens + span.tokens)
            return
    spans.append(span)


@dataclass(frozen=True)
class Row:
    """A request in one pass: where its context lies, and where its new tokens go."""

    index: int
    context_tokens: int
    new_tokens: int
    context: Spans
    targets: Spans
    reserved_ids: int

    @property
    def id_tokens(self) -> int:
        """The prefix of the context of which only the ids are kept."""
        return min(self.context_tokens, self.reserved_ids)

    @cached_property
    def kept(self) -> Mapping[Kind, int]:
        """Context tokens of each kind."""
        return {kind: tokens(spans) for kind, spans in self.context.items()}

    @cached_property
    def stored(self) -> Mapping[Kind, int]:
        """New tokens of each kind."""
        return {kind: tokens(spans) for kind, spans in self.targets.items()}

    @property
    def rebuilt_tokens(self) -> int:
        """Context tokens that are kept as activations."""
        return sum(self.kept[Kind(Content.ACTIVATION, place)] for place in Place)

    @property
    def causal_pairs(self) -> int:
        """Pairs of a token and one up to it, of the prompt or of the prefix computed again."""
        n = self.id_tokens if self.context_tokens else self.new_tokens
        return n * (n + 1) // 2


class Minibatch:
    """The requests of one mini-batch of a pass, and what they add up to."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.context_tokens = sum(row.context_tokens for row in rows)
        self.new_tokens = sum(row.new_tokens for row in rows)
        self.id_tokens = sum(row.id_tokens for row in rows)
        self.kept = {kind: sum(row.kept[kind] for row in rows) for kind in KINDS}
        self.stored = {kind: sum(row.stored[kind] for row in rows) for kind in KINDS}
        self.rebuilt_tokens = sum(row.rebuilt_tokens for row in rows)
        self.causal_pairs = sum(row.causal_pairs for row in rows)


def tokens(spans: tuple[Span, ...]) -> int:
    """Tokens of all spans."""
    return sum(span.tokens for span in spans)
