"""Causes of waiting: in each pass, the first waiting request, and why the pass left it there.

vLLM admits waiting requests in their order, and stops at the first that it cannot admit: the others
wait behind that one. A replay of the run has the state in which the pass decided.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvscope.api.runs import Request, Twin, Watcher
from kvscope_explain.causes import (
    FULL_BATCH,
    FULL_PASS,
    NEVER,
    NO_ROOM,
    NOT_ADMITTED,
    PREEMPTING,
    UNDER_WAY,
    UNKNOWN,
)

TOLERANCE_S = 1e-6
"""Tolerance of comparisons between times that were computed in two ways."""


@dataclass(frozen=True)
class Limits:
    """Limits of a pass, and the rules by which a request is admitted.

    `whole_prompts`: a prompt is computed in one pass. `reserves_all`: a request is admitted only if
    all of its tokens have room. `kept_free` is a share of the blocks.
    """

    pass_tokens: float = math.inf
    requests: float = math.inf
    whole_prompts: bool = False
    reserves_all: bool = True
    kept_free: float = 0.0

    @staticmethod
    def of(settings: Mapping[str, Any], server: Mapping[str, Any]) -> "Limits":
        """The limits of an experiment's settings, or of a recorded server's."""
        engine, batching = (_section(settings, name) for name in ("engine", "batching"))
        cache, stated = _section(settings, "cache"), engine or server
        limits = (stated.get("max_num_batched_tokens"), batching.get("chunk_tokens"))
        tokens = min((limit for limit in limits if isinstance(limit, int)), default=math.inf)
        whole = batching.get("name") in ("prefill_first", "mixed")
        return Limits(
            pass_tokens=tokens,
            requests=stated.get("max_num_seqs") or math.inf,
            whole_prompts=whole or server.get("chunked_prefill") is False,
            reserves_all=stated.get("scheduler_reserve_full_isl") is not False,
            kept_free=cache.get("watermark") or server.get("watermark") or 0.0,
        )


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Refusal:
    """The first waiting request that a pass left waiting, and the reason.

    `needed` are the blocks that it lacked, without those that it would have found and others hold,
    and with those that stay free when a request is admitted (the watermark); `free` are those that
    no request held; `running` and `tokens` are those of the pass.
    """

    request_id: str
    cause: str
    needed: int
    free: int
    running: int
    tokens: int


@dataclass(frozen=True)
class Wait:
    """Seconds of a wait with one cause: the requests that it waited behind, longest first.

    `behind` is empty where the request is the first of the queue itself. `free` are the most
    blocks that were free, `needed` those that the first of the queue lacked then; `again` is the
    share of its passes' tokens that were computed again.
    """

    cause: str
    seconds: float
    passes: int = 0
    behind: tuple[str, ...] = ()
    needed: int = 0
    free: int = 0
    running: int = 0
    tokens: int = 0
    again: float = 0.0


class Queue(Watcher):
    """Keeps the refusal of each pass; None where nobody was left waiting."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.refusals: list[Refusal | None] = []
        self._arrivals: list[Request] = []
        self._first = 0  # of these, the first that may still wait for its first pass
        self._lost: dict[str, Request] = {}

    def scheduled(self, twin: Twin) -> None:
        """Keep who is left waiting, and why."""
        if not self.refusals:
            ordered = sorted(twin.requests.values(), key=lambda r: (r.arrival_s, r.order))
            self._arrivals = ordered
        for victim in twin.told.victims.get(twin.step, ()):
            self._lost[victim.request_id] = twin.requests[victim.request_id]
        head = self._head(twin)
        self.refusals.append(None if head is None else self._refusal(twin, head))

    def _head(self, twin: Twin) -> Request | None:
        """The first waiting request: the one preempted last, else the one that came first."""
        gone = [name for name, r in self._lost.items() if r.running or r.ended_s is not None]
        for name in gone:
            del self._lost[name]
        waiting = (r for r in self._lost.values() if r.load is None and r.lost is not None)
        latest = max(waiting, key=lambda r: r.lost.order if r.lost else 0, default=None)
        return latest or next(self._arrived(twin), None)

    def _arrived(self, twin: Twin) -> Iterator[Request]:
        """Requests that have come and wait for their first pass."""
        now_s = twin.told.starts_s[twin.step] + TOLERANCE_S
        place, arrivals = self._first, self._arrivals
        while place < len(arrivals) and arrivals[place].arrival_s <= now_s:
            request = arrivals[place]
            started = request.running or request.preemptions or request.ended_s is not None
            if not started and request.load is None:
                yield request
            if started and place == self._first:
                self._first += 1
            place += 1

    def _refusal(self, twin: Twin, head: Request) -> Refusal:
        limits, rules, free = self._limits, twin.rules, twin.memory.free
        tokens = sum(row.tokens for row in twin.told.batch[twin.step])
        running, length, left = len(twin.running), head.length, limits.pass_tokens - tokens
        cached, held = twin.memory.cached(head)
        known = max(cached, head.in_pool.tokens if head.in_pool else 0, head.saved or 0)
        more = length - known
        computed = known + int(min(more, left)) if left > 0 else known + 1
        target = length if limits.reserves_all or rules.whole else computed
        kept_free = int(limits.kept_free * rules.kv_blocks_total) if running or rules.whole else 0
        needed = sum(rules.held_blocks(known, target)) - held + kept_free + rules.kept_free
        last_pass = length - int(min(length, limits.pass_tokens))
        if sum(rules.held_blocks(max(known, last_pass), length)) > rules.kv_blocks_total:
            cause = NEVER
        elif twin.told.victims.get(twin.step):
            cause = PREEMPTING
        elif running >= limits.requests:
            cause = FULL_BATCH
        elif left <= 0 or (limits.whole_prompts and more > left):
            cause = FULL_PASS
        else:
            cause = NO_ROOM if needed > free else NOT_ADMITTED
        return Refusal(head.id, cause, needed, free, running, tokens)


class Waits:
    """Causes of any wait of a request between two times, by the refusals of passes."""

    def __init__(
        self, refusals: list[Refusal | None], starts_s: list[float], recomputed_tokens: list[int]
    ) -> None:
        self._refusals, self._starts_s = refusals, starts_s
        self._recomputed_tokens = recomputed_tokens

    def between(
        self, request_id: str, start_s: float, end_s: float, first: str = UNDER_WAY
    ) -> list[Wait]:
        """Causes of a wait, the longest first; `first` is that of the time until the next pass."""
        if end_s <= start_s:
            return []
        begin = bisect_right(self._starts_s, start_s + TOLERANCE_S)
        stop = bisect_left(self._starts_s, end_s - TOLERANCE_S)
        if begin and self._starts_s[begin - 1] >= start_s - TOLERANCE_S and first == UNDER_WAY:
            begin -= 1  # it came as the pass began
        until_s = self._starts_s[begin] if begin < stop else end_s
        waits = [Wait(first, max(0.0, until_s - start_s))]
        waits += self._of_passes(request_id, begin, stop, max(until_s, start_s), end_s)
        return sorted((w for w in waits if w.seconds > 0), key=lambda w: -w.seconds)

    def _of_passes(
        self, request_id: str, begin: int, stop: int, start_s: float, end_s: float
    ) -> Iterator[Wait]:
        """One wait for each cause of these passes, own and behind others apart."""
        seconds: dict[tuple[str, bool], float] = defaultdict(float)
        refused: dict[tuple[str, bool], list[Refusal]] = defaultdict(list)
        behind: dict[tuple[str, bool], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        again: dict[tuple[str, bool], int] = defaultdict(int)
        for step in range(begin, stop):
            until_s = self._starts_s[step + 1] if step + 1 < stop else end_s
            took_s, start_s = until_s - start_s, until_s
            refusal = self._refusals[step] if step < len(self._refusals) else None
            cause = refusal.cause if refusal else UNKNOWN
            key = cause, refusal is not None and refusal.request_id != request_id
            seconds[key] += took_s
            if refusal is not None:
                refused[key].append(refusal)
                again[key] += self._recomputed_tokens[step]
                behind[key][refusal.request_id] += took_s
        for key, took_s in seconds.items():
            rows = refused[key]
            nearest = max(rows, key=lambda row: row.free, default=None)
            heads = sorted(behind[key], key=lambda name: -behind[key][name])
            yield Wait(
                key[0],
                took_s,
                len(rows),
                tuple(heads) if key[1] else (),
                nearest.needed if nearest else 0,
                nearest.free if nearest else 0,
                max((row.running for row in rows), default=0),
                max((row.tokens for row in rows), default=0),
                again[key] / max(1, sum(row.tokens for row in rows)),
            )
