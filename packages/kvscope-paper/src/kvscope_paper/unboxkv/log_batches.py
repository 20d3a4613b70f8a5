"""Requests of each pass of a published log, by the scheduler of vLLM 0.4.2, restated.

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
        """True if only the request's newest token is to be computed."""
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
    while (pass_ := scheduler.schedule()).rows:
        yield pass_


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
        pass_, chosen = Pass(), list[tuple[_Request, int]]()
        if self.strategy == DEFAULT:
            chosen = self._admit(self.budget, cut=False)
            if not chosen:
                chosen = self._go_on(pass_, self.budget)
        else:
            chosen = self._go_on(pass_, self.budget)
            spent = sum(tokens for _, tokens in chosen)
            # A request that was preempted for this pass waits for the next one.
            chosen += self._admit(self.budget - spent, cut=self.strategy == CHUNKED)
        self.waiting.extendleft(self.preempted)
        self.preempted = []
        pass_.rows = [self._compute(request, tokens) for request, tokens in chosen]
        self.running = [request for request in self.running if not self._ended(request)]
        pass_.resident_tokens = sum(request.computed for request in self.running)
        return pass_

    def _go_on(self, pass_: Pass, budget: int) -> list[tuple[_Request, int]]:
        """Running requests in order of arrival; the last ones go where a block is missing."""
        chosen = []
        queue = deque(sorted(self.running, key=lambda request: request.number))
        while queue and (tokens := min(queue[0].left, budget)):
            request = queue.popleft()
            while not self.free and queue:
                pass_.lost.append(self._preempt(queue.pop()))
            if not self.free:
                pass_.lost.append(self._preempt(request))
                continue
            needed = self.cache.blocks_of(request.tokens) - request.blocks
            self.free -= needed
            request.blocks += needed
            budget -= tokens
            chosen.append((request, tokens))
        self.running = [*(request for request, _ in chosen), *queue]
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
            request = self.waiting[0]
            tokens = min(request.left, budget) if cut else request.left
            needed = self.cache.blocks_of(request.tokens)
            if not 0 < tokens <= budget or self.free - needed < self.cache.watermark:
                break
            self.waiting.popleft()
            self.running.append(request)
            self.free -= needed
            request.blocks = needed
            budget -= tokens
            chosen.append((request, tokens))
        return chosen

    def _compute(self, request: _Request, tokens: int) -> Row:
        context, decodes = request.computed, request.decodes
        request.computed += tokens
        again = max(0, min(request.ever_computed, request.computed) - context)
        request.ever_computed = max(request.ever_computed, request.computed)
        sampled, resumed = int(not request.left), request.recovering
        request.sampled += sampled
        request.recovering = resumed and not sampled
        return Row(request.number, tokens, context, sampled, again, resumed, decodes and not again)

    def _ended(self, request: _Request) -> bool:
        if request.sampled < request.output:
            return False
        self.free += request.blocks
        return True
