"""The twin of an engine: it repeats the engine's decisions, and computes all else from them.

It has a KV cache, a prefix cache and a host pool of its own, and goes through the schedule of each
pass as vLLM does: running requests in their order, each of which gets its blocks or makes room by
preempting others; then those that are admitted. It never sees a cell that it works out.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

from kvscope.judge.twin.columns import blocks_of
from kvscope.judge.twin.evidence import CACHED
from kvscope.judge.twin.host import HostPool, end_of
from kvscope.judge.twin.jobs import Offloading
from kvscope.judge.twin.memory import Blocks, Counts, Memory
from kvscope.judge.twin.pool import Evicted
from kvscope.judge.twin.requests import Lost, Request
from kvscope.judge.twin.rows import Rows
from kvscope.judge.twin.rules import Rules
from kvscope.judge.twin.told import TOLERANCE_S, Job, Prompts, Scheduled, Told, Victim
from kvscope.plan.actions import RECOMPUTE, Action, action
from kvscope.tables.copies import IN, INPUTS, KV, OUT
from kvscope.tables.evidence import BLOCKS, CLOCK, JOBS, ORDER, SETTINGS, TOKEN_IDS

BLOCKS_IN_ORDER = ORDER, BLOCKS


class Problem(NamedTuple):
    """An impossible decision: its pass, a description, and the evidence by which it is judged."""

    step: int
    words: str
    needs: tuple[str, ...]


class Watcher:
    """Sees a replay as it goes; each method is called with the state that it is named by.

    A package's watcher overrides what it wants to see, and changes nothing.
    """

    def looked_up(self, twin: "Twin", request: Request) -> None:
        """A waiting request was looked up in the prefix cache: `request.found`, `request.hit`.

        It has no other blocks yet. The request is admitted, or begins to be loaded.
        """

    def gives_back(self, twin: "Twin", request: Request) -> None:
        """A request is about to give its blocks back: it was preempted, aborted or ended."""

    def scheduled(self, twin: "Twin") -> None:
        """The schedule of a pass is complete: requests have their blocks, others wait."""

    def computed(self, twin: "Twin") -> None:
        """A pass was computed: requests that ended with it have given their blocks back."""


class Twin:
    """The replay of one repeat: its `rows`, and the decisions that cannot have been made."""

    def __init__(
        self,
        rules: Rules,
        told: Told,
        prompts: Prompts,
        known: Collection[str],
        watcher: Watcher | None = None,
    ) -> None:
        self.rules, self.told, self._size = rules, told, rules.block_size
        self.prompts, self._watcher = prompts, watcher or Watcher()
        self.rows = Rows()
        self.problems: list[Problem] = []
        offloads = bool(told.loads or told.stores)
        self._blocks: Blocks | None = None
        if not rules.by_group and (rules.prefix_caching or offloads):
            self._blocks = Blocks(rules, prompts)
        self._memory: Blocks | Counts = self._blocks or Counts(rules)
        self._jobs = Offloading(rules, told, self._blocks) if self._blocks and offloads else None
        self._host = HostPool(rules)
        self._tokens_known = TOKEN_IDS in known
        self.requests = {
            known.request_id: Request(
                known.request_id, known.prompt_tokens, known.output_tokens, known.arrival_s, order
            )
            for order, known in enumerate(told.requests)
        }
        self._running: list[Request] = []
        self._loading: list[Request] = []
        self._leaving: list[tuple[float, Request]] = []  # aborted, and loaded until a time
        self._tokens_used = self._ended = 0
        self.step = 0
        self._victims: deque[Victim] = deque()
        self._evicted: list[tuple[str, Evicted]] = []
        self._copies: list[tuple[str | None, str, str, int, int]] = []

    @property
    def memory(self) -> Memory:
        """The KV cache."""
        return self._memory

    @property
    def running(self) -> Sequence[Request]:
        """The requests that passes compute, in vLLM's order."""
        return self._running

    @property
    def loading(self) -> Sequence[Request]:
        """The waiting requests that a load is under way for."""
        return self._loading

    @property
    def offloading(self) -> Offloading | None:
        """Replay of vLLM's offloading; None if its jobs are not replayed."""
        return self._jobs

    def play(self) -> "Twin":
        """Replay all passes."""
        for step in range(len(self.told.starts_s)):
            self.step = step
            self._end_aborted()
            self._evicted, self._copies = [], []
            self._schedule()
            self._watcher.scheduled(self)
            self._compute()
            self._watcher.computed(self)
        self._finish()
        return self

    # ------------------------------------------------------------------ requests that end

    def _end_aborted(self) -> None:
        for name in self.told.aborted_before.get(self.step, ()):
            request = self.requests[name]
            if request.ended_s is None:
                request.ended_s = self.told.aborted_s[name]
                self._leave(request, aborted=True)
        start_s = self.told.starts_s[self.step] + TOLERANCE_S
        for until_s, request in [item for item in self._leaving if item[0] <= start_s]:
            self._give_back(request)
            self._leaving.remove((until_s, request))

    def _leave(self, request: Request, aborted: bool = False) -> None:
        """End a request; during a load it holds its blocks until the copy has ended."""
        self._ended += 1
        if request.running:
            self._running.remove(request)
            request.running = False
        self._host.drop(request)
        if self._jobs:
            self._jobs.end(request, aborted)
        if request.load is not None:
            self._loading.remove(request)
            self._leaving.append((request.load.end_s, request))
            request.load = None
        else:
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._watcher.gives_back(self, request)
        self._set_tokens(request, 0)
        self._memory.release(request)

    def _set_tokens(self, request: Request, tokens: int) -> None:
        self._tokens_used += tokens - request.tokens
        request.tokens = tokens

    # ------------------------------------------------------------------ the schedule

    def _schedule(self) -> None:
        rows = {row.request_id: row for row in self.told.batch[self.step]}
        self._victims = deque(self.told.victims.get(self.step, ()))
        given_back = {victim.request_id: victim.scheduled_tokens for victim in self._victims}
        loads = self._begin_loads(rows)
        for request in list(self._running):
            if request.running:  # it may have been preempted to make room for an earlier one
                row = rows.get(request.id)
                more = given_back.get(request.id, row.tokens if row is not None else 0)
                if more:
                    self._go_on(request, more)
        self._preempt_before(inf)
        admitted = [self.requests[name] for name in rows if not self.requests[name].running]
        for request, load in self._in_turn(admitted, loads):
            if load is not None:
                self._begin_load(request, load)
            else:
                self._admit(request, rows[request.id].tokens)

    def _begin_loads(self, rows: Mapping[str, Scheduled]) -> deque[Job]:
        """Begin the loads of schedules without tokens, before the pass's own schedule; returns the
        others.

        Such a schedule may have preempted all that ran.
        """
        start_s, later = self.told.starts_s[self.step] - TOLERANCE_S, deque[Job]()
        looks_first = self.rules.waiting_first and not self._prefills(rows.values())
        for ordered_s, jobs in groupby(self.told.loads.get(self.step, ()), lambda j: j.ordered_s):
            if ordered_s >= start_s and not looks_first:
                later.extend(jobs)
                continue
            until_s = min(start_s, ordered_s + TOLERANCE_S)
            if not self.rules.waiting_first:
                self._preempt_before(until_s)
            for job in jobs:
                self._begin_load(self.requests[job.request_id], job)
            self._preempt_before(until_s)
        self._preempt_before(start_s)
        return later

    def _prefills(self, rows: Collection[Scheduled]) -> bool:
        """Whether a pass admits a request that has more to compute than its newest token."""
        admitted = [row for row in rows if not self.requests[row.request_id].running]
        return any(row.tokens > 1 or not self.requests[row.request_id].given for row in admitted)

    def _go_on(self, request: Request, more: int) -> None:
        """Give a running request blocks for a pass; others are preempted until it has enough."""
        memory, tokens = self._memory, request.tokens + more
        memory.slide(request)
        while self._victims and request.running and self._lacks(request, tokens):
            self._preempt(self._victims.popleft())
        if request.running:
            before = len(request.blocks)
            self._allocate(request, tokens)
            self._give(request, before)

    def _lacks(self, request: Request, tokens: int) -> bool:
        free = self._memory.free
        return self._memory.missing(request, tokens) > free or free < self.rules.kept_free

    def _allocate(self, request: Request, tokens: int, slots: int = 0) -> None:
        evicted = self._memory.grow(request, max(tokens, slots), self.step)
        if evicted is None:
            self._problem("has more blocks than there are", request, *BLOCKS_IN_ORDER)
        for block in evicted or ():
            self._evicted.append((request.id, block))
        self._memory.cache(request, tokens, self.step)

    def _give(self, request: Request, first: int) -> None:
        """Tell the offloading that a request has blocks, from a place on; a store may still read
        them."""
        if self._jobs:
            self._jobs.give(request.blocks[first:])

    def _in_turn(
        self, admitted: list[Request], loads: deque[Job]
    ) -> list[tuple[Request, Job | None]]:
        """Admitted requests and requests that begin to be loaded, in their order as far as known.

        vLLM takes waiting requests in the order of their arrival, preempted ones first.
        """
        queue: list[tuple[Request, Job | None]] = [(request, None) for request in admitted]
        for job in loads:
            request = self.requests[job.request_id]
            later = (
                place
                for place, (other, load) in enumerate(queue)
                if other is request
                or (load is None and other.load is None and _turn(other) > _turn(request))
            )
            queue.insert(next(later, len(queue)), (request, job))
        return queue

    # ------------------------------------------------------------------ admission

    def _admit(self, request: Request, more: int) -> None:
        if request.arrival_s > self.told.starts_s[self.step] + TOLERANCE_S:
            self._problem("is computed before it has come", request, CLOCK)
        if request.load is None:
            self._look_up(request)
            request.loaded = self.told.loaded.get((self.step, request.id), 0)
            context = max(request.hit + request.loaded, self._kept_tokens(request))
        else:
            context = self._arrive(request)
        request.running = True
        self._running.append(request)
        self._set_tokens(request, context)
        request.skipped = context
        self._memory.compute(request)
        self._copy_back(request, context)
        self._allocate(request, context + more, request.length if self.rules.whole else 0)
        self._give(request, 0)

    def _look_up(self, request: Request) -> None:
        """Find the request's first blocks that are in the prefix cache."""
        request.found, request.hit = [], 0
        if self._blocks is None:
            request.hit = self.told.hit.get((self.step, request.id), 0)
            self._watcher.looked_up(self, request)
            return
        contents = None
        if not self._tokens_known:
            contents = self.told.found.get((self.step, request.id), [])
        request.found = self._blocks.find(request, contents)
        if contents is not None and len(request.found) < len(contents):
            lacking = contents[len(request.found) :]
            words = f"found {lacking[0]}, which is not in the prefix cache"
            self._problem(words, request, *CACHED)
            request.found += [(0, content, False) for content in lacking]
        request.hit = len(request.found) * self._size
        self._watcher.looked_up(self, request)

    def _kept_tokens(self, request: Request) -> int:
        """Tokens of a victim up to which the host has what follows those that it has found."""
        if request.in_pool is not None:
            return end_of(request.in_pool, request.hit, self._size)
        if request.lost is not None and action(request.lost.action).rebuilds:
            return request.saved or 0
        return 0

    def _copy_back(self, request: Request, context: int) -> None:
        """Copy the victim's tokens in the host pool to the blocks behind those found."""
        blocks = sum(self.rules.held_blocks(context, context)) - request.hit // self._size
        brings = context > request.hit and not request.loaded
        if request.in_pool is not None:
            if brings:
                self._copy(request, IN, KV, blocks)
            self._host.drop_kv(request)
        elif brings:
            self._copy(request, IN, INPUTS, blocks)

    def _copy(self, request: Request, direction: str, kind: str, blocks: int) -> None:
        size = self.rules.input_block_bytes if kind == INPUTS else self.rules.block_bytes
        self._copies.append((request.id, direction, kind, blocks, blocks * size))

    # ------------------------------------------------------------------ loads

    def _begin_load(self, request: Request, job: Job) -> None:
        """Give a waiting request the blocks that vLLM's offloading fills beside the passes."""
        if request.running or request.load is not None:
            self._problem("is loaded although it is there", request, JOBS)
            return
        self._look_up(request)
        request.load = job
        self._loading.append(request)
        if self._jobs:
            for words in self._jobs.load(request, job):
                self._problem(words, request, JOBS)
        loaded = request.hit + job.blocks * self._size
        request.skipped = loaded
        slots = request.length if self.rules.whole else loaded
        for block in self._memory.grow(request, slots, self.step) or ():
            self._evicted.append((request.id, block))
        self._give(request, 0)

    def _arrive(self, request: Request) -> int:
        """End the load of a request; returns its context, without the newest token, which is
        computed."""
        job, request.load = request.load, None
        assert job is not None
        self._loading.remove(request)
        loaded = request.hit + job.blocks * self._size
        context = min(loaded, request.length - 1)
        request.loaded = context - request.hit
        arrived = self.step if job.arrived_step is None else job.arrived_step
        if not self._may_arrive(job, arrived):
            self._problem(f"is loaded by pass {arrived}, which cannot be", request, JOBS, CLOCK)
        self._memory.cache(request, loaded, arrived)
        return context

    def _may_arrive(self, job: Job, step: int) -> bool:
        """Whether a pass may learn that a load has ended, of a request that this pass admits."""
        between = 0 <= step <= self.step
        return between and self.told.starts_s[step] > job.ordered_s + TOLERANCE_S

    # ------------------------------------------------------------------ preemptions

    def _preempt_before(self, time_s: float) -> None:
        """Preempt victims that made room for no row of the batch, up to a time."""
        victims = [victim for victim in self._victims if victim.time_s < time_s]
        if not victims:
            return
        self._victims = deque(victim for victim in self._victims if victim.time_s >= time_s)
        last = self.requests[victims[-1].request_id]
        asks = None
        if last.running and not victims[-1].scheduled_tokens:
            self._memory.slide(last)
            asks = self._memory.missing(last, last.length + self.rules.most_tentative)
        for victim in victims:
            if asks is not None and self._memory.free >= asks + self.rules.kept_free:
                request = self.requests[victim.request_id]
                self._problem("was preempted although there was room", request, *BLOCKS_IN_ORDER)
            self._preempt(victim)

    def _preempt(self, victim: Victim) -> None:
        request, memory = self.requests[victim.request_id], self._memory
        if not request.running:
            self._problem("was preempted, and does not run", request)
            return
        self._running.remove(request)
        request.running = False
        request.preemptions += 1
        if not self._may_give_back(request, victim.scheduled_tokens):
            words = f"gives back {victim.scheduled_tokens} tokens"
            self._problem(words, request, ORDER, SETTINGS)
        blocks, shared = memory.held(request), memory.shared(request)
        done, refused = self._keep(request, victim, shared)
        self.rows.preempt(self, request, victim, done.name, refused, blocks, len(shared))
        order = len(self.rows.of["preemptions"])
        request.lost = Lost(self.step, order, victim, done.name, refused, request.tokens)
        request.recovering = True
        request.copied_s = self.told.copied_s.get((self.step, request.id, OUT), 0.0)
        memory.forget_uncomputed(request, self.step)
        if self._jobs:
            self._jobs.preempt(request, self.step)
        self._give_back(request)

    def _may_give_back(self, request: Request, tokens: int) -> bool:
        """Whether a pass may have been about to compute so many tokens of a victim."""
        if not tokens:
            return True
        remaining = request.length - request.tokens
        most = min(remaining, self.rules.chunk_tokens or remaining)
        return self.rules.ranked and (tokens == remaining or 0 < tokens <= most)

    def _keep(self, request: Request, victim: Victim, shared: list[int]) -> tuple[Action, bool]:
        """Action with a victim, and whether the host pool had refused it."""
        host, tokens = self._host, request.tokens
        if not tokens:
            host.drop_saved(request)
            return RECOMPUTE, False
        blocks = self._copied_blocks(request, shared)
        room, saved = host.has_room(blocks), request.saved == tokens
        planned = action(self.rules.always or victim.action)
        if self.rules.always is None and victim.refused:
            refused = True
            if not self.rules.host_blocks_total or (room and saved):
                self._problem("was refused, although the host had room", request)
        else:
            refused = (planned.rebuilds and not saved) or (planned.copies and not room)
        done = RECOMPUTE if refused else planned
        if done.copies:
            host.swap_out(request, blocks, shared)
            if blocks:
                self._copy(request, OUT, KV, blocks)
        if not done.keeps:
            host.drop_saved(request)
        return done, refused

    def _copied_blocks(self, request: Request, shared: list[int]) -> int:
        """Blocks of a victim's tokens, without blocks that others hold."""
        if self._blocks is None:
            return sum(self.rules.held_blocks(request.skipped, request.tokens))
        used = blocks_of(request.tokens, self._size)
        return used - sum(place < used for place in shared)

    # ------------------------------------------------------------------ the pass itself

    def _compute(self) -> None:
        rows = self.told.batch[self.step]
        saved = self._save(rows)
        tokens = sum(row.tokens for row in rows)
        ended = [request for row in rows if (request := self._row(row, saved, tokens))]
        self._store()
        self.rows.report(self, rows)
        self.rows.copy(self.step, self._copies)
        self.rows.evict(self.step, self._evicted, self.told.starts_s)
        for request in ended:
            request.ended_s = self.told.ends_s[self.step]
            self._leave(request)

    def _store(self) -> None:
        if self._jobs:
            for words in self._jobs.store(self.step):
                self._problem(words, None, JOBS)
            self._jobs.end_pass(self.step)

    def _save(self, rows: list[Scheduled]) -> dict[str, int]:
        """Save the activations of a pass; returns the saved tokens of each request.

        New requests come before running and resumed ones, in vLLM's order of the rows of a pass.
        """
        if not self.rules.input_blocks_total:
            return {}
        written, blocks = {}, 0
        new = {row.request_id for row in rows if self.requests[row.request_id].first_s is None}
        for row in sorted(rows, key=lambda row: row.request_id not in new):
            request = self.requests[row.request_id]
            begins_unsaved = not request.tokens and not (self.rules.always or row.saved_tokens)
            if begins_unsaved and not request.saved:
                continue
            if count := self._host.save(request, row.tokens):
                written[request.id] = row.tokens
                blocks += count
        if written:
            token_bytes = self.rules.input_block_bytes // self._size
            copied = sum(written.values()) * token_bytes
            self._copies.append((None, OUT, INPUTS, blocks, copied))
        return written

    def _row(self, row: Scheduled, saved: dict[str, int], pass_tokens: int) -> Request | None:
        """Compute one request of a pass; returns it if it ends with that."""
        request, step = self.requests[row.request_id], self.step
        context, tentative, kept = request.tokens, row.tentative, row.kept
        if request.first_s is None:
            request.first_s = self.told.starts_s[step]
        computed = context + row.tokens - tentative
        sampled = 1 + kept if computed == request.length else 0
        if self.rules.ends_early and self.told.last_row.get(row.request_id) == step:
            sampled = min(sampled, row.sampled_tokens)
        end = computed + min(kept, max(0, sampled - 1)) if kept else computed
        highest = request.highest
        again = min(highest, end) - context if highest > context else 0
        decodes = request.given > 0 and row.tokens - tentative == 1 and not again
        if self._jobs:
            self._jobs.offer(request, context + row.tokens)
        self.rows.compute(self, request, row, saved.get(request.id, 0), again, sampled, decodes)
        if again and request.cost_row is not None:
            share = again / pass_tokens
            self.rows.add_cost(request.cost_row, self.told.forward_s[step] * share)
        self._set_tokens(request, end)
        if end > highest:
            request.highest = end
        if sampled:
            request.given += sampled
            request.recovering = False
            request.last_s = self.told.ends_s[step]
            if request.token_s is None:
                request.token_s = request.last_s
        return request if self._ends(request) else None

    def _ends(self, request: Request) -> bool:
        if not self.rules.ends_early:
            return request.given >= request.due
        return self.told.last_row[request.id] == self.step and request.id not in self.told.aborted_s

    def _finish(self) -> None:
        if self._jobs:
            for words in self._jobs.store_rest():
                self._problem(words, None, JOBS)
        for name in self.told.aborted_before.get(len(self.told.starts_s), ()):
            if self.requests[name].ended_s is None:
                self.requests[name].ended_s = self.told.aborted_s[name]
        for declared in self.told.requests:
            self.rows.outcome(self.requests[declared.request_id], declared, self.told.aborted_s)

    # ------------------------------------------------------------------ what rows are made of

    @property
    def away(self) -> int:
        """Number of requests that do not wait: they run, are being loaded, or have ended."""
        return self._ended + len(self._running) + len(self._loading)

    @property
    def used_by_group(self) -> list[int]:
        """Blocks of each KV group that requests hold."""
        return self._memory.used_by_group

    @property
    def tokens_used(self) -> tuple[int, int]:
        """Least and greatest number of tokens of requests in the cache; each block counts once.

        A block that was loaded before its request ran may count for each request that found it.
        """
        least = self._tokens_used - self._memory.shared_tokens
        return least, self._tokens_used if self._jobs else least

    @property
    def host_used(self) -> tuple[int, int]:
        """Blocks of the host in use, at least and at most.

        The last pass may include blocks that vLLM's offloading stores after it.
        """
        if self._jobs is None:
            return self._host.used, self._host.used
        total = self.rules.host_blocks_total
        stored = min(self._jobs.stored_blocks, total)
        return stored, total if self.step == len(self.told.starts_s) - 1 else stored

    def _problem(self, words: str, request: Request | None, *needs: str) -> None:
        whose = f"request {request.id} " if request is not None else ""
        self.problems.append(Problem(self.step, whose + words, needs))


def _turn(request: Request) -> tuple[float, ...]:
    if request.lost is not None:
        return 0, -request.lost.order
    return 1, request.arrival_s, request.order
