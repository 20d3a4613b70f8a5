"""Why each pass left the first waiting request where it was.

vLLM admits waiting requests in their order, and stops at the first that it cannot admit: the others
wait behind that one. A replay of the run has the state in which the pass decided. Of a recording
that begins in the middle nothing can be replayed: there the tables say it, without what a waiting
request would have found in the prefix cache.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from kvscope.api.runs import RunView, replay
from kvscope.api.tables import evidence
from kvscope_explain.causes import (
    FULL_BATCH,
    FULL_PASS,
    NEVER,
    NO_ROOM,
    NOT_ADMITTED,
    PREEMPTING,
    UNKNOWN,
)
from kvscope_explain.limits import Limits

TOLERANCE_S = 1e-6
"""Tolerance of comparisons between times that were computed in two ways."""


class Refusal(NamedTuple):
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


class Waiting(NamedTuple):
    """A waiting request: its tokens, those that it need not compute, and blocks that others hold.

    `held` counts the blocks of the tokens that it would find, as far as others hold them.
    """

    request_id: str
    length: int
    known: int = 0
    held: int = 0


class State(NamedTuple):
    """State of the engine when the schedule of a pass is complete."""

    tokens: int
    running: int
    free: int
    preempts: bool


def refusal(limits: Limits, rules: replay.Rules, head: Waiting, state: State) -> Refusal:
    """Why a pass did not admit the first waiting request."""
    tokens, running, free, preempts = state
    more, left = head.length - head.known, limits.pass_tokens - tokens
    computed = head.known + (int(min(more, left)) if left > 0 else 1)
    target = head.length if limits.reserves_all or rules.whole else computed
    kept_free = int(limits.kept_free * rules.kv_blocks_total) if running or rules.whole else 0
    needed = sum(rules.held_blocks(head.known, target)) - head.held + kept_free + rules.kept_free
    last_pass = head.length - int(min(head.length, limits.pass_tokens))
    if sum(rules.held_blocks(max(head.known, last_pass), head.length)) > rules.kv_blocks_total:
        cause = NEVER
    elif preempts:
        cause = PREEMPTING
    elif running >= limits.requests:
        cause = FULL_BATCH
    elif left <= 0 or (limits.whole_prompts and more > left):
        cause = FULL_PASS
    elif needed > free:
        cause = NO_ROOM
    else:
        cause = NOT_ADMITTED if limits.known else UNKNOWN
    return Refusal(head.request_id, cause, needed, free, running, tokens)


def refusals_of(repeat: RunView, limits: Limits) -> list[Refusal | None]:
    """The refusal of each pass of a repeat; None where no request was left waiting."""
    run = repeat.whole
    if evidence.PASSES in run.evidence and repeat.repeat is not None:
        queue = Queue(limits)
        replay.watch(run, repeat.repeat, queue)
        return queue.refusals
    return list(_of_tables(repeat, limits, replay.rules(run)))


class Queue(replay.Watcher):
    """Keeps the refusal of each pass; None where no request was left waiting."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.refusals: list[Refusal | None] = []
        self._arrivals: list[replay.Request] = []
        self._first = 0  # of these, the first that may still wait for its first pass
        self._lost: dict[str, replay.Request] = {}

    def scheduled(self, twin: replay.Twin) -> None:
        """Keep who is left waiting, and why."""
        if not self.refusals:
            ordered = sorted(twin.requests.values(), key=lambda r: (r.arrival_s, r.order))
            self._arrivals = ordered
        for victim in twin.told.victims.get(twin.step, ()):
            self._lost[victim.request_id] = twin.requests[victim.request_id]
        head = self._head(twin)
        self.refusals.append(None if head is None else self._refusal(twin, head))

    def _head(self, twin: replay.Twin) -> replay.Request | None:
        """The first waiting request: the one preempted last, else the one that came first."""
        gone = [name for name, r in self._lost.items() if r.running or r.ended_s is not None]
        for name in gone:
            del self._lost[name]
        waiting = (r for r in self._lost.values() if r.load is None and r.lost is not None)
        latest = max(waiting, key=lambda r: r.lost.order if r.lost else 0, default=None)
        return latest or next(self._arrived(twin), None)

    def _arrived(self, twin: replay.Twin) -> Iterator[replay.Request]:
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

    def _refusal(self, twin: replay.Twin, head: replay.Request) -> Refusal:
        cached, held = twin.memory.cached(head)
        pooled = head.in_pool.tokens if head.in_pool else 0
        waiting = Waiting(head.id, head.length, max(cached, pooled, head.saved or 0), held)
        tokens = sum(row.tokens for row in twin.told.batch[twin.step])
        preempts = bool(twin.told.victims.get(twin.step))
        state = State(tokens, len(twin.running), twin.memory.free, preempts)
        return refusal(self._limits, twin.rules, waiting, state)


def _of_tables(repeat: RunView, limits: Limits, rules: replay.Rules) -> Iterator[Refusal | None]:
    """The refusals as the tables have them: requests wait from their arrival to their first pass,
    and from a preemption until they resume."""
    requests = repeat.requests.sort_values("arrival_s", kind="stable")
    never_s = requests["finished_s"]
    first_s = requests["first_scheduled_s"].fillna(never_s)
    names, prompts = requests["request_id"].tolist(), requests["prompt_tokens"].tolist()
    arrivals = list(zip(names, prompts, requests["arrival_s"], first_s, strict=True))
    events = dict(iter(repeat.preemptions.groupby("step")))
    lost: dict[str, Waiting] = {}
    first = 0
    columns = ["step", "start_s", "scheduled_tokens", "requests", "kv_blocks_used"]
    for step, start_s, tokens, count, used in repeat.steps[columns].itertuples(index=False):
        preempted = _follow(lost, events.get(step))
        state = State(tokens, count, rules.kv_blocks_total - used, preempted)
        while first < len(arrivals) and arrivals[first][3] <= start_s + TOLERANCE_S:
            first += 1
        head = next(reversed(lost.values()), None)
        if head is None:
            waiting = (
                Waiting(name, prompt)
                for name, prompt, came_s, begun_s in arrivals[first:]
                if came_s <= start_s + TOLERANCE_S < begun_s
            )
            head = next(waiting, None)
        yield None if head is None else refusal(limits, rules, head, state)


def _follow(lost: dict[str, Waiting], events: pd.DataFrame | None) -> bool:
    """Keep who has lost its blocks; whether a pass preempts."""
    if events is None:
        return False
    for name, event, tokens in events[["request_id", "event", "tokens"]].itertuples(index=False):
        if event == "preempt":
            lost[name] = Waiting(name, int(tokens) + 1)
        else:
            lost.pop(name, None)
    return bool((events["event"] == "preempt").any())
