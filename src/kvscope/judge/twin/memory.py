"""Blocks that requests hold: counts by KV group, or identified blocks."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from kvscope.judge.twin.columns import blocks_of
from kvscope.judge.twin.pool import Block, Evicted, Pool
from kvscope.judge.twin.requests import Hit, Request
from kvscope.judge.twin.rules import Rules
from kvscope.judge.twin.told import Content, Prompts


class Memory(Protocol):
    """The KV cache, as a replay allocates it."""

    @property
    def free(self) -> int:
        """Blocks that no request holds."""

    @property
    def used_by_group(self) -> list[int]:
        """Blocks that requests hold of each KV group."""

    @property
    def shared_tokens(self) -> int:
        """Tokens of shared blocks that are counted more than once."""

    def missing(self, request: Request, tokens: int) -> int:
        """Blocks that a request lacks for so many tokens."""

    def slide(self, request: Request) -> None:
        """Windows let go of what they have left behind."""

    def grow(self, request: Request, tokens: int, step: int) -> list[Evicted] | None:
        """Give a request blocks for so many tokens; None if there are too few.

        Returns what was evicted for it.
        """

    def cache(self, request: Request, tokens: int, step: int) -> None:
        """The blocks that so many tokens of a request fill are in the prefix cache."""

    def compute(self, request: Request) -> None:
        """Passes compute a request from now on."""

    def release(self, request: Request) -> None:
        """A request gives all its blocks back."""

    def forget_uncomputed(self, request: Request, step: int) -> None:
        """Drop blocks that a pass was to fill from the prefix cache: the request was preempted."""

    def cached(self, request: Request) -> tuple[int, int]:
        """Tokens of a waiting request in the prefix cache, and their blocks that others hold."""

    def held(self, request: Request) -> list[int]:
        """Blocks of each group that a request holds."""

    def shared(self, request: Request) -> list[int]:
        """The places of a request's blocks that others hold as well."""

    def is_cached(self, name: Hashable) -> bool:
        """Whether a block of this name is in the prefix cache."""


class Counts:
    """Blocks by number: those of a request follow from its tokens."""

    shared_tokens = 0

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.free = rules.kv_blocks_total
        self.used_by_group = [0] * len(rules.groups)
        self._slides = any(group.window_tokens for group in rules.groups)
        # of one group without windows, the tokens of a block say how many there are
        self._single = None if rules.by_group else rules.groups[0].block_tokens

    def missing(self, request: Request, tokens: int) -> int:
        """Blocks that a request lacks for so many tokens."""
        slots = max(tokens, request.slots)
        if self._single:
            return blocks_of(slots, self._single) - sum(request.held)
        return sum(self._rules.held_blocks(request.skipped, slots)) - sum(request.held)

    def slide(self, request: Request) -> None:
        """Windows let go of what they have left behind."""
        if request.skipped != request.tokens:
            request.skipped = request.tokens
            if self._slides:
                self._hold(request, self._rules.held_blocks(request.skipped, request.slots))

    def grow(self, request: Request, tokens: int, step: int) -> list[Evicted] | None:
        """Give a request blocks for so many tokens; None if there are too few."""
        if self._single and request.held and tokens <= request.held[0] * self._single:
            request.slots = max(request.slots, tokens)
            return []
        request.slots = max(request.slots, tokens)
        self._hold(request, self._rules.held_blocks(request.skipped, request.slots))
        return None if self.free < 0 else []

    def _hold(self, request: Request, held: list[int]) -> None:
        before = request.held or [0] * len(held)
        for group, (new, old) in enumerate(zip(held, before, strict=True)):
            self.used_by_group[group] += new - old
            self.free -= new - old
        request.held = held

    def cache(self, request: Request, tokens: int, step: int) -> None:
        """Cache nothing: there is no prefix cache."""

    def compute(self, request: Request) -> None:
        """Share nothing: there is no prefix cache."""

    def release(self, request: Request) -> None:
        """A request gives all its blocks back."""
        self._hold(request, [0] * len(self.used_by_group))
        request.slots = request.skipped = 0

    def forget_uncomputed(self, request: Request, step: int) -> None:
        """Forget nothing: there is no prefix cache."""

    def cached(self, request: Request) -> tuple[int, int]:
        """Nothing: there is no prefix cache."""
        return 0, 0

    def held(self, request: Request) -> list[int]:
        """Blocks of each group that a request holds."""
        return list(request.held) or [0] * len(self.used_by_group)

    def shared(self, request: Request) -> list[int]:
        """No places: no block is shared."""
        return []

    def is_cached(self, name: Hashable) -> bool:
        """No block: there is no prefix cache."""
        return False


class Blocks:
    """Identified blocks of one group, and the prefix cache if there is one."""

    def __init__(self, rules: Rules, prompts: Prompts) -> None:
        self.pool = Pool(rules.kv_blocks_total)
        self._size, self._caches, self._prompts = rules.block_size, rules.prefix_caching, prompts

    @property
    def free(self) -> int:
        """Blocks that no request holds."""
        return self.pool.free

    @property
    def used_by_group(self) -> list[int]:
        """Blocks that requests hold."""
        return [self.pool.used]

    @property
    def shared_tokens(self) -> int:
        """Tokens of shared blocks that are counted more than once."""
        return self.pool.extra * self._size

    def missing(self, request: Request, tokens: int) -> int:
        """Blocks that a request lacks for so many tokens."""
        return max(0, blocks_of(tokens, self._size) - len(request.blocks))

    def slide(self, request: Request) -> None:
        """There is no window."""

    def grow(self, request: Request, tokens: int, step: int) -> list[Evicted] | None:
        """Give a request blocks for so many tokens; None if there are too few."""
        request.slots = max(request.slots, tokens)
        evicted = []
        for _ in range(blocks_of(request.slots, self._size) - len(request.blocks)):
            if not self.pool.free:
                return None
            block, lost = self.pool.take()
            request.blocks.append(block)
            if request.computing:
                self.pool.compute(block)
            if lost is not None:
                evicted.append(lost)
        return evicted

    def cache(self, request: Request, tokens: int, step: int) -> None:
        """The blocks that so many tokens of a request fill are in the prefix cache."""
        if not self._caches:
            return
        full = min(min(tokens, request.length) // self._size, len(request.blocks))
        for place in range(request.cached, full):
            content = (request.id, place, step)
            self.pool.cache(request.blocks[place], self.name(request, place), content)
            request.cached = place + 1

    def name(self, request: Request, at: int) -> Hashable:
        """A name of a request's tokens up to the end of a block; a name of its own if tokens are
        unknown."""
        names = self._prompts.of(request.id)
        return names[at] if at < len(names) else (request.id, at)

    def find(self, request: Request, contents: Sequence[Content] | None) -> list[Hit]:
        """Hold the cached blocks with the first tokens of a request.

        If tokens are not known, these are the blocks with these `contents`, as far as they are
        cached.
        """
        blocks = list(self._of_tokens(request) if contents is None else self._of(contents))
        hits = []
        for block in blocks:
            assert block.content is not None
            hits.append((block.serial, block.content, block.holders > 0))
            self.pool.hold(block)
        request.blocks, request.cached = blocks, len(blocks)
        return hits

    def _of_tokens(self, request: Request) -> Iterator[Block]:
        """Cached blocks of a request's tokens; the newest token is always computed."""
        for place in range((request.length - 1) // self._size if self._caches else 0):
            block = self.pool.find(self.name(request, place))
            if block is None:
                return
            yield block

    def _of(self, contents: Sequence[Content]) -> Iterator[Block]:
        for content in contents:
            block = self.pool.with_content(content)
            if block is None:
                return
            yield block

    def compute(self, request: Request) -> None:
        """Passes compute a request from now on."""
        request.computing = True
        for block in request.blocks:
            self.pool.compute(block)

    def release(self, request: Request) -> None:
        """A request gives all its blocks back."""
        self.pool.release(request.blocks, request.computing)
        request.blocks = []
        request.slots = request.skipped = request.cached = 0
        request.computing = False

    def forget_uncomputed(self, request: Request, step: int) -> None:
        """Drop blocks that a pass was to fill from the prefix cache: the request was preempted."""
        for block in request.blocks[: request.cached]:
            if block.content is not None and block.content[::2] == (request.id, step):
                self.pool.forget(block)

    def cached(self, request: Request) -> tuple[int, int]:
        """Tokens of a waiting request in the prefix cache, and their blocks that others hold."""
        blocks = list(self._of_tokens(request))
        return len(blocks) * self._size, sum(block.holders > 0 for block in blocks)

    def held(self, request: Request) -> list[int]:
        """Blocks that a request holds."""
        return [len(request.blocks)]

    def shared(self, request: Request) -> list[int]:
        """The places of a request's blocks that others hold as well."""
        return [place for place, block in enumerate(request.blocks) if block.holders > 1]

    def is_cached(self, name: Hashable) -> bool:
        """Whether a block of this name is in the prefix cache."""
        return self.pool.find(name) is not None
