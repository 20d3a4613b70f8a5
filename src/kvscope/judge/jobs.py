"""vLLM's offloading: which blocks the host has, what is due to be stored, what a load may take.

Blocks are stored as passes fill them, of prompts alone or of outputs as well, unless the host has
equal ones. The host is judged until it is full; then blocks leave it in an order that depends on
when copies end.
"""

from collections import defaultdict, deque
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence

from kvscope.judge.memory import Blocks
from kvscope.judge.requests import Request
from kvscope.judge.rules import Rules
from kvscope.judge.told import Job, Told


class Offloading:
    """The blocks that vLLM's offloading keeps on the host, by the names of their tokens."""

    def __init__(self, rules: Rules, told: Told, blocks: Blocks) -> None:
        self._rules, self._told, self._blocks = rules, told, blocks
        self._size = rules.block_size
        self._loaded: dict[Hashable, set[Hashable]] = {}  # of each block, those of its store
        self.loaded_of: dict[int, set[Hashable]] = {}  # of each store, its blocks that were loaded
        self.stored_blocks = 0
        self._offers: list[tuple[Request, int]] = []  # of this pass, by the schedule's order
        self._ended: list[tuple[Request, int]] = []
        self._rest: list[Job] = []

    @property
    def full(self) -> bool:
        """Whether blocks had to make room for others."""
        return self.stored_blocks > self._rules.host_blocks_total

    # ------------------------------------------------------------------ loads

    def load(self, request: Request, job: Job) -> Iterator[str]:
        """Note a load that begins; yields what is wrong with it."""
        first, there = job.first_block, self._there(request)
        if first * self._size != request.hit:
            yield f"loads from block {first} on, and found {request.hit} tokens"
        if job.blocks > there or (job.blocks < there and not self.full):
            yield f"loads {job.blocks} blocks, the host has {there} that follow"
        for at in range(first, first + min(job.blocks, there)):
            name = self._blocks.name(request, at)
            self._loaded.get(name, set()).add(name)
        request.stored = max(request.stored, first + job.blocks)

    def _there(self, request: Request) -> int:
        """Blocks that the host has after those that a request has found."""
        first = request.hit // self._size
        places = range(first, request.length // self._size)
        return next(
            (at - first for at in places if self._blocks.name(request, at) not in self._loaded),
            len(places),
        )

    # ------------------------------------------------------------------ stores

    def offer(self, request: Request, tokens: int) -> None:
        """The blocks that so many tokens of a request fill may be stored in this pass."""
        self._offer(request, self._full(request, tokens))

    def _offer(self, request: Request, full: int) -> None:
        if full > request.stored:
            self._offers.append((request, full))

    def _full(self, request: Request, tokens: int) -> int:
        """The blocks of a request that may be stored once so many tokens are computed."""
        most = request.length if self._rules.stores_outputs else request.prompt
        return min(min(tokens, most) // self._size, len(request.blocks))

    def end(self, request: Request, aborted: bool) -> None:
        """A request has ended: what it has filled since may be stored with the next pass."""
        tokens = request.tokens if aborted else max(request.prompt, request.length - 1)
        self._ended.append((request, self._full(request, tokens)))

    def store(self, step: int) -> Iterator[str]:
        """Note the stores of a pass; yields what is wrong with them.

        With the last pass there are those of requests that ended with it.
        """
        ended, self._ended = self._ended, []
        self._rest = yield from self._match(self._told.stores.get(step, ()))
        for request, full in ended:
            self._offer(request, full)
        if step < len(self._told.starts_s) - 1:
            self._rest = yield from self._match(self._rest)
            yield from self._too_many()

    def store_rest(self) -> Iterator[str]:
        """The same of the stores after the last pass."""
        for request, full in self._ended:
            self._offer(request, full)
        self._rest = yield from self._match(self._rest)
        yield from self._too_many()

    def _too_many(self) -> Iterator[str]:
        for job in self._rest:
            yield f"request {job.request_id} has {job.blocks} blocks stored that are not due"
            self.stored_blocks += job.blocks

    def _match(self, jobs: Iterable[Job]) -> Generator[str, None, list[Job]]:
        """Give each offer its job; yields what is wrong, and returns the jobs that are left."""
        by_request: dict[str, deque[Job]] = defaultdict(deque)
        for job in jobs:
            by_request[job.request_id].append(job)
        offers, self._offers = self._offers, []
        for request, full in offers:
            due, own = self._due(request, full), by_request[request.id]
            if own and (due or self.full):
                yield from self._store(request, full, due, own.popleft())
            elif due and not self._lacks_room(due):
                yield f"request {request.id} has blocks from {due[0]} on that are not stored"
            if not due or not self._lacks_room(due):
                request.stored = max(request.stored, full)
        return [job for own in by_request.values() for job in own]

    def _due(self, request: Request, full: int) -> list[int]:
        """Places up to `full` of blocks that a request has not offered, and the host lacks."""
        places = range(request.stored, full)
        return [at for at in places if self._blocks.name(request, at) not in self._loaded]

    def _lacks_room(self, due: Sequence[int]) -> bool:
        return self.stored_blocks + len(due) > self._rules.host_blocks_total

    def _store(self, request: Request, full: int, due: list[int], job: Job) -> Iterator[str]:
        first, last = job.first_block, job.first_block + job.blocks
        stores = f"request {request.id} stores {job.blocks} blocks from {first} on"
        if not self._lacks_room(due):
            if (first, job.blocks) != (due[0], len(due)):
                yield f"{stores}, due are {len(due)} from {due[0]} on"
        elif first < request.stored or last > full:
            yield f"{stores}, there are {request.stored} to {full - 1}"
        self.stored_blocks += job.blocks
        loaded = self.loaded_of.setdefault(job.number, set())
        for at in due if len(due) == job.blocks else range(first, min(last, full)):
            self._loaded[self._blocks.name(request, at)] = loaded
        request.stored = max(request.stored, full)
