"""The identified blocks of the KV cache, in the order in which vLLM hands them out.

A free block without content is taken first, the last one freed before others. Then cached blocks,
those free for longest first, which evicts what they hold.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Sequence

from kvscope.judge.twin.told import Content


class Block:
    """A block: its number here, its holders, and its content if that is in the prefix cache.

    `holders` counts requests, `computing` those of them that passes compute, `hits` how often it
    was found since it was cached.
    """

    __slots__ = ("computing", "content", "hits", "holders", "name", "serial")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.holders = self.computing = self.hits = 0
        self.name: Hashable | None = None
        self.content: Content | None = None


Evicted = tuple[int, Content, int]
"""A block that left the prefix cache: its number, its content, and how often it was found."""


class Pool:
    """All blocks of a KV cache. Blocks are numbered as they are used first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.extra = 0  # holders that passes compute, beyond the first of each block
        self._used_once = 0
        self._plain: list[Block] = []  # free blocks without content; the last is the next
        self._cached_free: OrderedDict[Block, None] = OrderedDict()
        self._cached: dict[Hashable, dict[Block, None]] = defaultdict(dict)
        self._by_content: dict[Content, Block] = {}

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return self.total - self._used_once + len(self._plain) + len(self._cached_free)

    @property
    def used(self) -> int:
        """The number of blocks that requests hold."""
        return self.total - self.free

    def take(self) -> tuple[Block, Evicted | None]:
        """Take a free block for a request; returns it with its lost content. There must be a
        free block."""
        lost = None
        if self._plain:
            block = self._plain.pop()
        elif self._used_once < self.total:
            self._used_once += 1
            block = Block(self._used_once)
        else:
            block, _ = self._cached_free.popitem(last=False)
            assert block.content is not None
            lost = block.serial, block.content, block.hits
            self.forget(block)
        block.holders = 1
        return block, lost

    def cache(self, block: Block, name: Hashable, content: Content) -> None:
        """Put a block into the prefix cache, under the name of its tokens."""
        block.name, block.content, block.hits = name, content, 0
        self._by_content[content] = block
        self._cached[name][block] = None

    def forget(self, block: Block) -> None:
        """A block is no longer in the prefix cache."""
        if block.content is not None:
            del self._cached[block.name][block]
            self._by_content.pop(block.content, None)
            block.name = block.content = None

    def find(self, name: Hashable) -> Block | None:
        """The block that was cached first under a name; None without such a block."""
        return next(iter(self._cached.get(name, ())), None)

    def with_content(self, content: Content) -> Block | None:
        """The block that has this content; None without such a block."""
        return self._by_content.get(content)

    def hold(self, block: Block) -> None:
        """Count one more request that holds a cached block."""
        if not block.holders:
            del self._cached_free[block]
        block.holders += 1
        block.hits += 1

    def compute(self, block: Block) -> None:
        """Count one more holder of a block whose request passes compute."""
        block.computing += 1
        self.extra += block.computing > 1

    def release(self, blocks: Sequence[Block], computed: bool) -> None:
        """Release a request's blocks, the last one first."""
        plain = []
        for block in reversed(blocks):
            if computed:
                self.extra -= block.computing > 1
                block.computing -= 1
            block.holders -= 1
            if not block.holders:
                if block.name is None:
                    plain.append(block)
                else:
                    self._cached_free[block] = None
        self._plain.extend(reversed(plain))
