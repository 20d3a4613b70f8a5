"""Which request each pass of a published log computed: the scheduler of vLLM 0.4.2, restated.

A log has the tokens of each pass and not whose they are. With the requests' lengths, the token
budget and the blocks of the cache they follow from vLLM's rules; they are believed only if every
pass of the log has the tokens and the preemptions that follow.

The rules are those of `vllm/core/scheduler.py` and `block_manager_v1.py` of vLLM 0.4.2, and of the
artifact's mixed batching, for requests that are all there at the start and that lose their blocks
to recomputation, as those of all published logs.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

DEFAULT, MIXED, CHUNKED = "default", "mixed", "chunked"
WATERMARK = 0.01  # of the blocks, which an admission leaves free


@dataclass
class _Request:
    number: int
    prompt: int
    output: int
    computed: int = 0  # tokens whose K and V are in the cache
    ever_computed: int = 0
    sampled: int = 0
    blocks: int = 0
    recovering: bool = False  # from a preemption until it gives a token again

    @property
    def tokens(self) -> int:
        """Its prompt and the tokens it has given."""
        return self.prompt + self.sampled

    @property
    def left(self) -> int:
        """Tokens that are not computed: 1 of a request that decodes."""
        return self.tokens - self.computed

    @property
    def decodes(self) -> bool:
        """Whether only its newest token is to be computed."""
        return self.sampled > 0 and self.left == 1


@dataclass(frozen=True)
class Row:
    """A request in a pass: its number, tokens computed, and those in the cache before.

    Of the tokens, `recomputed` were in the cache before a preemption. `resumed`: the request gives
    no token since its preemption until this pass.
    """

    request: int
    tokens: int
    context: int
    sampled: int
    recomputed: int = 0
    resumed: bool = False
    decodes: bool = False


@dataclass(frozen=True)
class Lost:
    """A request that was preempted while a pass was scheduled: tokens and blocks it held."""

    request: int
    tokens: int
    blocks: int


@dataclass
class Pass:
    """One pass: its requests in order, those that were preempted for it, and the cache after it.

    `resident_tokens` have K and V in the cache once requests that ended have left it.
    """

    rows: list[Row] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    resident_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens it computes."""
        return sum(row.tokens for row in self.rows)


@dataclass(frozen=True)
class Cache:
    """Blocks of the cache and their tokens; no blocks: room for every request."""

    blocks: int = 0
    block_size: int = 16

    @property
    def limit(self) -> int:
        """Blocks that can be in use."""
        return self.blocks or 1 << 60

    @property
    def watermark(self) -> int:
        """Blocks that an admission leaves free."""
        return int(WATERMARK * self.blocks)

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)


ROOM = Cache()


def passes(
    lengths: Sequence[tuple[int, int]],
    strategy: str,
    budget: int,
    cache: Cache = ROOM,
    most_requests: int = 256,
) -> Iterator[Pass]:
    """The passes of requests with these prompt and output tokens, until all have ended.

    They end early if a request can never run: its prompt exceeds the budget or the cache.
    """
    scheduler = _Scheduler(lengths, strategy, budget, cache, most_requests)
    while (made := scheduler.schedule()).rows:
        yield made


class _Scheduler:
    def __init__(
        self,
        lengths: Sequence[tuple[int, int]],
        strategy: str,
        budget: int,
        cache: Cache,
        most_requests: int,
    ) -> None:
        self.waiting = deque(_Request(n, *length) for n, length in enumerate(lengths, 1))
        self.running: list[_Request] = []
        self.preempted: list[_Request] = []  # while the pass under way is scheduled
        self.strategy, self.budget = strategy, budget
        self.cache, self.most_requests = cache, most_requests
        self.free = cache.limit

    def schedule(self) -> Pass:
        """The next pass; one without rows if nothing can run."""
        made, chosen = Pass(), list[tuple[_Request, int]]()
        if self.strategy == DEFAULT:
            chosen = self._admit(self.budget, cut=False)
            if not chosen:
                chosen = self._go_on(made, self.budget)
        else:
            chosen = self._go_on(made, self.budget)
            spent = sum(tokens for _, tokens in chosen)
            # A request that was preempted for this pass waits for the next one.
            chosen += self._admit(self.budget - spent, cut=self.strategy == CHUNKED)
        self.waiting.extendleft(self.preempted)
        self.preempted = []
        made.rows = [self._compute(one, tokens) for one, tokens in chosen]
        self.running = [one for one in self.running if not self._ended(one)]
        made.resident_tokens = sum(one.computed for one in self.running)
        return made

    def _go_on(self, made: Pass, budget: int) -> list[tuple[_Request, int]]:
        """Running requests in order of arrival; the last ones go where a block is missing."""
        chosen = []
        queue = deque(sorted(self.running, key=lambda one: one.number))
        while queue and (tokens := min(queue[0].left, budget)):
            one = queue.popleft()
            while not self.free and queue:
                made.lost.append(self._preempt(queue.pop()))
            if not self.free:
                made.lost.append(self._preempt(one))
                continue
            needed = self.cache.blocks_of(one.tokens) - one.blocks
            self.free -= needed
            one.blocks += needed
            budget -= tokens
            chosen.append((one, tokens))
        self.running = [*(one for one, _ in chosen), *queue]
        return chosen

    def _preempt(self, victim: _Request) -> Lost:
        lost = Lost(victim.number, victim.computed, victim.blocks)
        self.free += victim.blocks
        victim.blocks = victim.computed = 0
        victim.recovering = True
        self.preempted.append(victim)
        return lost

    def _admit(self, budget: int, cut: bool) -> list[tuple[_Request, int]]:
        """Waiting requests in order, whole or cut to the budget, while all their blocks fit."""
        chosen = []
        while self.waiting and len(self.running) < self.most_requests:
            one = self.waiting[0]
            tokens = min(one.left, budget) if cut else one.left
            needed = self.cache.blocks_of(one.tokens)
            if not 0 < tokens <= budget or self.free - needed < self.cache.watermark:
                break
            self.waiting.popleft()
            self.running.append(one)
            self.free -= needed
            one.blocks = needed
            budget -= tokens
            chosen.append((one, tokens))
        return chosen

    def _compute(self, one: _Request, tokens: int) -> Row:
        context, decodes = one.computed, one.decodes
        one.computed += tokens
        again = max(0, min(one.ever_computed, one.computed) - context)
        one.ever_computed = max(one.ever_computed, one.computed)
        sampled, resumed = int(not one.left), one.recovering
        one.sampled += sampled
        one.recovering = resumed and not sampled
        return Row(one.number, tokens, context, sampled, again, resumed, decodes and not again)

    def _ended(self, one: _Request) -> bool:
        if one.sampled < one.output:
            return False
        self.free += one.blocks
        return True
