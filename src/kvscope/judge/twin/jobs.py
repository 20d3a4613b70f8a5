"""Replay of vLLM's offloading: blocks on the host, due stores, and blocks that a load may take.

Blocks are stored as passes fill them, of prompts alone or of outputs as well, unless the host has
equal ones. Once the host is full, blocks leave it in an order that depends on when copies end: what
it has is then known between two bounds.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvscope.judge.twin.memory import Blocks
from kvscope.judge.twin.pool import Block
from kvscope.judge.twin.requests import Request
from kvscope.judge.twin.rules import Rules
from kvscope.judge.twin.told import TOLERANCE_S, Job, Told


@dataclass
class Store:
    """A store: its blocks of the KV cache, and the passes in which other requests may have got
    them.

    These are the passes in which its request was preempted or, after the request's end, in which a
    block was given to another request. `loaded` are the names of its blocks that were loaded,
    `perhaps` of loaded blocks that this store or another one had. `sure`: it is known which blocks
    it has.
    """

    end_s: float
    request: Request
    blocks: set[Block]
    sure: bool
    loaded: set[Hashable] = field(default_factory=set)
    perhaps: set[Hashable] = field(default_factory=set)
    given_away: list[int] = field(default_factory=list)

    @property
    def loaded_blocks(self) -> tuple[int, int]:
        """Least and greatest number of its blocks that were loaded."""
        return len(self.loaded), len(self.loaded | self.perhaps)


class Offloading:
    """The blocks that vLLM's offloading keeps on the host, by the names of their tokens."""

    def __init__(self, rules: Rules, told: Told, blocks: Blocks) -> None:
        self._rules, self._told, self._blocks = rules, told, blocks
        self._size = rules.block_size
        self._stores_of: dict[Hashable, list[Store]] = {}  # that may have stored a block last
        self.stores: dict[int, Store] = {}  # by job
        self._under_way: list[Store] = []
        self._given: set[Block] = set()  # to requests in this pass
        self._last_blocks: dict[str, list[Block]] = {}  # of requests that have ended
        self.stored_blocks = 0
        self._offers: list[tuple[Request, int]] = []  # offers of this pass, in the schedule's order
        self._ended: list[tuple[Request, int]] = []
        self._rest: list[Job] = []

    @property
    def full(self) -> bool:
        """Whether blocks had to make room for others."""
        return self.stored_blocks > self._rules.host_blocks_total

    # ------------------------------------------------------------------ loads

    def load(self, request: Request, job: Job) -> Iterator[str]:
        """Take a load that begins; yields its faults."""
        first, available = job.first_block, self._there(request)
        if first * self._size != request.hit:
            yield f"loads from block {first} on, and found {request.hit} tokens"
        if job.blocks > available or (job.blocks < available and not self.full):
            yield f"loads {job.blocks} blocks, the host has {available} that follow"
        for place in range(first, first + min(job.blocks, available)):
            name = self._blocks.name(request, place)
            stores = self._stores_of.get(name, ())  # empty: a load from elsewhere
            for store in stores:
                (store.loaded if len(stores) == 1 else store.perhaps).add(name)
        request.stored = first + job.blocks  # the blocks after these are offered again

    def _there(self, request: Request) -> int:
        """Blocks that the host has, at most, after those that a request has found."""
        first = request.hit // self._size
        places = range(first, request.length // self._size)
        return next(
            (i - first for i in places if self._blocks.name(request, i) not in self._stores_of),
            len(places),
        )

    # ------------------------------------------------------------------ stores

    def offer(self, request: Request, tokens: int) -> None:
        """Offer the blocks that so many tokens of a request fill, to be stored in this pass."""
        self._offer(request, self._full(request, tokens))

    def _offer(self, request: Request, full: int) -> None:
        if full > request.stored:
            self._offers.append((request, full))

    def _full(self, request: Request, tokens: int) -> int:
        """The blocks of a request that may be stored once so many tokens are computed."""
        most = request.length if self._rules.stores_outputs else request.prompt
        return min(min(tokens, most) // self._size, len(request.blocks))

    def end(self, request: Request, aborted: bool) -> None:
        """End a request: the blocks that it has filled since may be stored with the next pass."""
        self._last_blocks[request.id] = list(request.blocks)
        tokens = request.tokens if aborted else max(request.prompt, request.length - 1)
        self._ended.append((request, self._full(request, tokens)))

    # ------------------------------------------------------------------ stores that are waited for

    def give(self, blocks: Iterable[Block]) -> None:
        """Give blocks to a request in this pass, newly allocated or found."""
        self._given.update(blocks)

    def preempt(self, request: Request, step: int) -> None:
        """A request is preempted: the pass waits for its stores, which read its blocks."""
        for store in self._under_way:
            if store.request is request:
                store.given_away.append(step)

    def end_pass(self, step: int) -> None:
        """Note the blocks that were given away, and forget stores that had ended before.

        vLLM learns of an end with the output of a pass, or with an empty schedule after it.
        """
        for store in self._under_way:
            if store.request.id in self._last_blocks and not store.blocks.isdisjoint(self._given):
                store.given_away.append(step)
        self._given.clear()
        start_s = self._told.starts_s[step]
        self._under_way = [store for store in self._under_way if store.end_s >= start_s]

    def awaited(self, job: int, stated: int | None) -> int | None:
        """The pass that waited for a store: the first that gave its blocks away before it had
        ended.

        If no pass must have waited, it is the stated pass if that may have waited, else None. A
        pass may have waited for a store that ended since the previous pass, or whose blocks are
        not known.
        """
        store, given_away = self.stores[job], self.stores[job].given_away
        if given_away and store.sure:
            begins_s = self._told.starts_s[given_away[0]]
            if store.end_s > begins_s + TOLERANCE_S:
                return given_away[0]
        return stated if stated in given_away else None

    # ------------------------------------------------------------------ which stores are due

    def store(self, step: int) -> Iterator[str]:
        """Take the stores of a pass; yields their faults.

        The last pass includes the stores of requests that ended with it.
        """
        ended, self._ended = self._ended, []
        self._rest = yield from self._match(self._told.stores.get(step, ()))
        for request, full in ended:
            self._offer(request, full)
        if step < len(self._told.starts_s) - 1:
            self._rest = yield from self._match(self._rest)
            yield from self._too_many()

    def store_rest(self) -> Iterator[str]:
        """Take the stores after the last pass; yields their faults."""
        for request, full in self._ended:
            self._offer(request, full)
        self._rest = yield from self._match(self._rest)
        yield from self._too_many()

    def _too_many(self) -> Iterator[str]:
        for job in self._rest:
            yield f"request {job.request_id} has {job.blocks} blocks stored that are not due"
            self.stored_blocks += job.blocks

    def _match(self, jobs: Iterable[Job]) -> Generator[str, None, list[Job]]:
        """Match each offer with its job; yields faults, and returns the remaining jobs."""
        by_request: dict[str, deque[Job]] = defaultdict(deque)
        for job in jobs:
            by_request[job.request_id].append(job)
        offers, self._offers = self._offers, []
        for request, full in offers:
            lacking, queue = self._due(request, full), by_request[request.id]
            if queue and (lacking or self.full):
                yield from self._store(request, full, lacking, queue.popleft())
            elif lacking and not self._lacks_room(lacking):
                yield f"request {request.id} has blocks from {lacking[0]} on that are not stored"
            if not lacking or not self._lacks_room(lacking):
                request.stored = max(request.stored, full)
        return [job for queue in by_request.values() for job in queue]

    def _due(self, request: Request, full: int) -> list[int]:
        """Places up to `full` of blocks that a request has not offered, and the host lacks."""
        places = range(request.stored, full)
        return [i for i in places if self._blocks.name(request, i) not in self._stores_of]

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
        elif not _covers(job, due):
            yield f"{stores}, which lack some of {len(due)} that are due from {due[0]} on"
        self.stored_blocks += job.blocks
        places = range(max(first, request.stored), full)
        sure = places if len(places) == job.blocks else sorted({first, *due}.intersection(places))
        self._keep(request, job, sure if len(sure) == job.blocks else places, sure)
        request.stored = max(request.stored, full)

    def _keep(
        self, request: Request, job: Job, places: Sequence[int], sure: Collection[int]
    ) -> None:
        """Store blocks at some of the places, at least at those that are sure."""
        request_blocks = self._last_blocks.get(request.id, request.blocks)
        blocks = {request_blocks[place] for place in places if place < len(request_blocks)}
        store = Store(job.end_s, request, blocks, len(places) == len(sure))
        self.stores.setdefault(job.number, store)
        self._under_way.append(store)
        for place in places:
            name = self._blocks.name(request, place)
            others = [] if place in sure else self._stores_of.get(name, [])
            self._stores_of[name] = [*others, store]


def _covers(job: Job, due: Sequence[int]) -> bool:
    """Whether a store can have all blocks that are due, its first one among its blocks."""
    if not due:
        return True
    return job.first_block <= due[0] and job.blocks >= len(due) + (job.first_block < due[0])
