"""Causes of the tokens that passes compute, seen as the twin of an engine goes through a run."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvscope.api.runs import RunView, kept, replay
from kvscope.api.tables import evidence
from kvscope_explain import tokens
from kvscope_explain.branches import WIDTH, Branch, Branches, encode
from kvscope_explain.group_hits import GroupHits, cause_of
from kvscope_explain.tokens import Account, Accounts, Eviction, Kept
from kvscope_explain.uses import BlockUses


class Part(NamedTuple):
    """Tokens of a request up to a position, which have one cause if they are computed."""

    end: int
    cause: str
    fact: Eviction | Kept | None = None


class Stay:
    """A request in the cache, from its look-up until it gives its blocks back.

    It asks for `asked` tokens, and for those behind the found ones there are `parts`. `filled` of
    its blocks are counted as used.
    """

    def __init__(self, asked: int, parts: Sequence[Part], filled: int) -> None:
        self.asked, self.filled = asked, filled
        self.begun = False  # a pass has computed some of it
        self.divide(parts)

    def divide(self, parts: Sequence[Part]) -> None:
        """The tokens behind those found have these parts."""
        self._parts, self._ends = parts, [part.end for part in parts]

    def spans(self, start: int, end: int) -> Iterator[tuple[int, Part]]:
        """The number of tokens between two positions in each part; outputs are behind all parts."""
        for part in self._parts[bisect_right(self._ends, start) :]:
            if start >= end:
                return
            yield min(end, part.end) - start, part
            start = part.end
        if start < end:
            yield end - start, Part(end, tokens.OUTPUT)


class Misses(replay.Watcher):
    """Accounts for the tokens of each request of a replay, in `accounts`.

    `caches` says whether there is a prefix cache, `size` how many tokens have a name: a block, or
    with several KV groups what vLLM hashes at once. `texts` are, of requests with a cache salt or
    an adapter, the names that their prompts' blocks have without.
    """

    def __init__(
        self, caches: bool, size: int, groups: GroupHits, texts: Mapping[str, Sequence[Hashable]]
    ) -> None:
        self.accounts: dict[str, Account] = defaultdict(Account)
        self._caches, self._size, self._groups = caches, size, groups
        self._texts, self._texts_computed = texts, set[Hashable]()
        self._kept: Kept | None = None  # of the latest look-up
        self._uses = BlockUses()
        self._passes = [0]  # in which each event of `_uses` was
        self._held: list[int] = []  # blocks of all requests, by pass
        self._ahead: Counter[Hashable] = Counter()  # requests that are to compute a block
        self._stays: dict[str, Stay] = {}
        self._evictions: dict[int, Eviction] = {}  # by the last use, of the latest look-up
        self._branches = Branches(self._tokens, self._computed)
        self._branched: set[str] = set()  # requests in `_branches`
        self._encoded: dict[str, bytes] = {}

    # ------------------------------------------------------------------ what a replay shows

    def looked_up(self, twin: replay.Twin, request: replay.Request) -> None:
        """Find the cause of each token that was not found."""
        self._twin, self._kept = twin, self._groups.kept(twin.step, request.id)
        self._evictions.clear()
        hit = request.hit // self._size
        asked = max(request.prompt, request.highest, request.hit)
        stay = Stay(asked, [*self._parts(request)], hit)
        self._stays[request.id] = stay
        self._use(self._names(request, 0, hit))
        self._ahead.update(self._to_fill(request, stay))

    def scheduled(self, twin: replay.Twin) -> None:
        """Account for the tokens of a pass."""
        self._held.append(sum(twin.memory.used_by_group))
        for row in twin.told.batch[twin.step]:
            request, account = twin.requests[row.request_id], self.accounts[row.request_id]
            stay, start = self._stays[row.request_id], request.tokens
            if not stay.begun:
                stay.begun = True
                _admit(account, request, stay.asked)
                if request.loaded and start == stay.asked - 1:
                    stay.divide([Part(stay.asked, tokens.LAST)])
            for count, part in stay.spans(start, start + row.tokens):
                account.computed[part.cause] += count
                if isinstance(part.fact, Eviction):
                    account.evicted[part.fact] += count
                elif part.fact is not None:
                    account.kept[part.fact] += count
            self._fill(request, stay, start + row.tokens - row.tentative + row.kept)

    def gives_back(self, twin: replay.Twin, request: replay.Request) -> None:
        """The blocks of a request were used until now."""
        stay = self._stays.pop(request.id, None)
        if stay is not None:
            if stay.begun:
                left_out = max(0, stay.asked - request.tokens)
                self.accounts[request.id].unserved += left_out
            self._ahead.subtract(self._to_fill(request, stay))
            self._use(self._names(request, 0, request.tokens // self._size))

    # ------------------------------------------------------------------ uses of blocks

    def _fill(self, request: replay.Request, stay: Stay, tokens_after: int) -> None:
        """A pass fills blocks of a request."""
        full = tokens_after // self._size
        if full > stay.filled:
            names = self._names(request, stay.filled, full)
            self._ahead.subtract(names[: max(0, request.prompt // self._size - stay.filled)])
            if self._texts:
                places = enumerate(names, stay.filled)
                self._texts_computed.update(self._text(request, *each) for each in places)
            stay.filled = full
            self._use(names)

    def _text(self, request: replay.Request, place: int, name: Hashable) -> Hashable:
        """The name that a block has without salt and adapter."""
        texts = self._texts.get(request.id, ())
        return texts[place] if place < len(texts) else name

    def _to_fill(self, request: replay.Request, stay: Stay) -> list[Hashable]:
        """The full blocks of a prompt that passes have not yet filled."""
        return self._names(request, stay.filled, request.prompt // self._size)

    def _use(self, names: Sequence[Hashable]) -> None:
        if names:
            self._uses.use(names)
            self._passes.append(len(self._held))

    def _names(self, request: replay.Request, start: int, end: int) -> list[Hashable]:
        """Names of a request's blocks; those of unknown tokens have names of their own."""
        known: list[Hashable] = [*self._twin.prompts.of(request.id)[start:end]]
        return known + [(request.id, place) for place in range(start + len(known), end)]

    # ------------------------------------------------------------------ causes

    def _parts(self, request: replay.Request) -> Iterator[Part]:
        """The parts of a request behind its found tokens, in order."""
        size, start = self._size, max(request.hit, request.highest)
        if start > request.hit:
            yield Part(start, tokens.PREEMPTED)
        first = start // size
        place = first
        for place, name in enumerate(self._names(request, first, request.prompt // size), first):
            end = (place + 1) * size
            part = self._known(request, end, name)
            if part is None and self._text(request, place, name) in self._texts_computed:
                part = Part(end, tokens.SALTED)
            if part is None:
                break
            yield part
        else:
            place = max(first, request.prompt // size)
        if start < request.prompt:
            yield from self._rest(request, place)
        self._branch(request, place)

    def _rest(self, request: replay.Request, place: int) -> Iterator[Part]:
        """The part of a prompt from its first block that no request has computed.

        Of recorded requests the tokens within a block are not known.
        """
        size, prompt = self._size, request.prompt
        if self._encode(request.id):
            start = max(request.hit, request.highest)
            yield Part(max(start, place * size + self._shared(request, place)), tokens.SHORT)
        elif not self._caches:
            yield Part(prompt, tokens.OFF)
        elif place == prompt // size and prompt % self._twin.rules.block_size:
            yield Part(prompt, tokens.SHORT)
        yield Part(prompt, tokens.NEW)

    def _known(self, request: replay.Request, end: int, name: Hashable) -> Part | None:
        """A full block that has been computed, or is being computed; None if it is neither."""
        used, ahead = name in self._uses, self._ahead[name] > 0
        if not self._caches and used:
            return Part(end, tokens.OFF)
        if self._groups.several:
            return self._of_groups(request, end) if used else _under_way(end, ahead)
        if self._twin.memory.is_cached(name):
            missing = request.hit < end - self._size
            return Part(end, tokens.BEHIND if missing else tokens.LAST)
        if used and not ahead:
            return Part(end, tokens.EVICTED, self._eviction(self._uses.last_use(name)))
        return _under_way(end, ahead)

    def _of_groups(self, request: replay.Request, end: int) -> Part:
        """Tokens that had been computed, of a model with several KV groups."""
        cause = cause_of(self._kept, end, request.prompt, self._twin.rules.block_size)
        return Part(end, cause, self._kept if cause == tokens.STATE else None)

    def _eviction(self, event: int) -> Eviction:
        """Reuse distance of a block by its last use, and the blocks held since if they matter."""
        eviction = self._evictions.get(event)
        if eviction is None:
            distance, held = self._uses.since(event), None
            if distance < self._twin.rules.kv_blocks_total:
                held = max(self._held[self._passes[event] :], default=0)
            eviction = self._evictions[event] = Eviction(distance, held)
        return eviction

    # ------------------------------------------------------------------ parts of blocks

    def _shared(self, request: replay.Request, place: int) -> int:
        """First tokens of a prompt's block that an earlier request has computed behind the same
        blocks."""
        start, end = place * self._size, min((place + 1) * self._size, request.prompt)
        first = self._encode(request.id)[WIDTH * start : WIDTH * end]
        if not first:
            return 0
        return self._branches.shared_tokens(self._chain(request.id, place), first)

    def _branch(self, request: replay.Request, first: int) -> None:
        """Later requests may begin as this one, whose blocks are new from a place on."""
        name, size = request.id, WIDTH * self._size
        if name not in self._branched:
            self._branched.add(name)
            for place in range(first, -(-len(self._encode(name)) // size)):
                self._branches.add(self._chain(name, place), (name, place))

    def _chain(self, request_id: str, place: int) -> Hashable:
        """The name of the blocks before a place; None before the first block."""
        return self._twin.prompts.of(request_id)[place - 1] if place else None

    def _encode(self, request_id: str) -> bytes:
        """The known tokens of a request as bytes."""
        if request_id not in self._encoded:
            self._encoded[request_id] = encode(self._twin.prompts.tokens_of(request_id))
        return self._encoded[request_id]

    def _tokens(self, branch: Branch) -> bytes:
        request_id, place = branch
        size = WIDTH * self._size
        return self._encode(request_id)[place * size : (place + 1) * size]

    def _computed(self, branch: Branch) -> int:
        """Tokens of a branch that have been computed, or will be by a request in the cache."""
        request_id, place = branch
        request = self._twin.requests[request_id]
        end = max(request.highest, request.prompt if request_id in self._stays else 0)
        return max(0, end - place * self._size)


def _under_way(end: int, ahead: bool) -> Part | None:
    return Part(end, tokens.UNDER_WAY) if ahead else None


def _admit(account: Account, request: replay.Request, asked: int) -> None:
    """Count the tokens that a request has as a pass first computes it."""
    found = min(request.hit, request.tokens)
    account.asked += asked
    account.found += found
    account.loaded += request.loaded
    account.copied += request.tokens - found - request.loaded


@kept
def accounts_of(repeat: RunView) -> Accounts | None:
    """The accounts of the requests of a repeat; None where not all passes before are known."""
    number = repeat.repeat
    if number is None or evidence.PASSES not in repeat.evidence:
        return None
    misses = _watcher_of(repeat)
    twin = replay.watch(repeat.whole, number, misses)
    rules, stored = twin.rules, repeat.batch.groupby("request_id")["hit_tokens"].sum()
    return Accounts(
        misses.accounts,
        dict(zip(repeat.requests["request_id"], repeat.requests["prompt_tokens"], strict=True)),
        {str(name): int(hits) for name, hits in stored.items()},
        evidence.TOKEN_IDS in repeat.evidence,
        rules.kv_blocks_total,
        rules.block_size,
        rules.block_bytes,
        rules.host_blocks_total if twin.offloading else 0,
    )


def _watcher_of(repeat: RunView) -> Misses:
    """The watcher of a repeat's replay, by the facts of its engine."""
    recorded, groups = repeat.record.recorded, GroupHits(repeat)
    served = bool(recorded and recorded.prefix_caching)
    caches = bool(repeat.settings.get("cache", {}).get("prefix_caching", served))
    hashed = recorded.tokens("hash_block_size") if recorded else 0
    size = (groups.several and hashed) or repeat.block_size
    named = zip(repeat.workload["request_id"], repeat.workload["text_ids"], strict=True)
    texts = {str(name): list(map(int, ids)) for name, ids in named if ids is not None}
    return Misses(caches, size, groups, texts)
