"""Records a server's scheduler as plain numbers, and hands them to the writer.

A fault of it ends the recording, nothing else.
"""

import time
from collections import deque
from copy import copy
from functools import wraps
from typing import Any

from kvscope.api.recording import marks as nvtx
from kvscope.api.recording import observer, ranges
from kvscope_record.counts import Counts
from kvscope_record.records import (
    STOPPED_OR_ABORTED,
    Arrival,
    Done,
    Ended,
    Event,
    Live,
    Ordered,
    Preempted,
    Sampled,
    Scheduled,
)
from kvscope_record.records import Segment as SegmentStart
from kvscope_record.writer import Writer

MOST_DONE = 1 << 14
"""Ended requests that the next segments repeat."""


class ServerRecorder(observer.Recorder):
    """Gives what a scheduler does to a writer; `facts` begin each segment."""

    def __init__(self, writer: Writer, facts: dict[str, Any]) -> None:
        self._writer, self._facts = writer, facts
        self._requests = 0  # that came so far
        self._segments = 0
        self._dropped = 0
        self._dropping = False
        self._numbers: dict[str, int] = {}  # of requests by vLLM's ids
        self._arrivals: dict[int, int] = {}
        self._counts = Counts(facts)
        self._told: list[list[int]] = []  # counts of the pass whose output is being processed
        self._done = deque[Done](maxlen=MOST_DONE)  # since the newest segment began
        self._done_before: deque[Done] = self._done.copy()  # in the segment before
        self._group_hits: dict[str, list[int]] = {}  # of waiting requests, by their last look-up

    def observe(self, scheduler: Any, marks: nvtx.Marks) -> observer.SchedulerObserver:
        """Record a scheduler from now on, and mark its passes."""
        self._scheduler = scheduler
        marks.push(ranges.REPEAT)
        self._observer = observer.SchedulerObserver(scheduler, self, time.monotonic_ns, marks)
        manager = scheduler.kv_cache_manager
        if self._facts.get("prefix_caching") and len(self._facts["kv_groups"]) > 1:
            self._observer.follow(manager, "get_computed_blocks", after=self.looked_up)
        self.guarded(self.begin_schedule)()
        return self._observer

    def guarded(self, take: observer.Take) -> observer.Take:
        """The method while the writer is open; a fault of it closes the writer."""
        writer = self._writer

        @wraps(take)
        def safely(*args: Any, **kwargs: Any) -> None:
            if not writer.open:
                return
            try:
                take(*args, **kwargs)
            except Exception as error:
                writer.stop(f"{type(error).__name__} in {take.__name__}: {error}")

        return safely

    def _put(self, event: Event) -> None:
        if self._dropping or self._writer.full:
            self._dropping = True
            self._dropped += 1
            return
        self._writer.put(event)

    # ------------------------------------------------------------------ what is observed

    def begin_schedule(self) -> None:
        """Begin a segment, if the writer wants one or records had to be dropped."""
        writer = self._writer
        if not (writer.wants_segment or self._dropping) or not writer.caught_up:
            return
        writer.wants_segment = self._dropping = False
        now, utc, step = time.monotonic_ns(), time.time_ns(), self._observer.step
        number, self._segments = self._segments, self._segments + 1
        counts = number, now, utc, step, self._dropped, self._requests
        writer.put(SegmentStart(self._facts, *counts))
        for name, request in self._scheduler.requests.items():
            if name in self._numbers and not request.is_finished():
                writer.put(self._live(self._numbers[name], request))
        for done in (*self._done_before, *self._done):
            writer.put(done)
        self._done_before, self._done = self._done, deque(maxlen=MOST_DONE)

    def _live(self, number: int, request: Any) -> Live:
        groups = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        return Live(
            number,
            self._arrivals[number],
            request.num_prompt_tokens,
            request.max_tokens,
            self._hashes(request),
            request.num_output_tokens,
            request.num_computed_tokens,
            request.num_preemptions,
            [list(group) for group in groups],
        )

    def _hashes(self, request: Any) -> list[Any]:
        """vLLM's hashes of the full blocks of a prompt, which it has with a prefix cache."""
        return list(request.block_hashes[: self._full_blocks(request)])

    def _plain_hashes(self, request: Any) -> list[Any]:
        """Hashes of a prompt with a cache salt or a LoRA adapter, as if it had none."""
        hasher = getattr(request, "_block_hasher", None)
        own = getattr(request, "cache_salt", None), getattr(request, "lora_request", None)
        if hasher is None or own == (None, None):
            return []
        plain = copy(request)
        plain.cache_salt = plain.lora_request = None
        plain.block_hashes = []
        return list(hasher(plain)[: self._full_blocks(request)])

    def _full_blocks(self, request: Any) -> int:
        tokens: int = request.num_prompt_tokens
        return tokens // int(self._facts["hash_block_size"])

    def arrived(self, time_ns: int, request: Any) -> None:
        """Number a request."""
        if request.request_id in self._numbers:
            return  # more input of a session
        number, self._requests = self._requests, self._requests + 1
        self._numbers[request.request_id] = number
        self._arrivals[number] = time_ns
        prompt, most = request.num_prompt_tokens, request.max_tokens
        plain = self._plain_hashes(request)
        self._put(Arrival(number, time_ns, prompt, most, self._hashes(request), plain))

    def ordered(self, time_ns: int, orders: Any) -> None:
        """Record the copies that vLLM's offloading orders; other connectors' are not known."""
        loads, stores = (getattr(orders, f"{name}_jobs", {}) for name in ("load", "store"))
        awaited = getattr(orders, "jobs_to_flush", None) or ()
        if loads or stores or awaited:
            into = [self._job(number, job, job.dst_spec) for number, job in loads.items()]
            out = [self._job(number, job, job.src_spec) for number, job in stores.items()]
            self._put(Ordered(self._observer.step, time_ns, into, out, sorted(awaited)))

    def _job(self, number: int, job: Any, blocks: Any) -> list[int]:
        """A job, given the blocks of the KV cache that it reads or fills."""
        request = self._numbers[job.req_id]
        return [number, request, len(blocks.block_ids), int(blocks.block_indices[0])]

    def looked_up(self, _: int, result: Any, request: Any) -> None:
        """Keep how many tokens each KV group could give, where together they give too few.

        It takes as long as vLLM's own look-up. Some releases of vLLM cannot say it.
        """
        coordinator = self._scheduler.kv_cache_manager.coordinator
        tell = getattr(coordinator, "find_longest_cache_hit_per_group", None)
        size = self._facts["block_size"]
        if tell is not None and result[1] < (request.num_tokens - 1) // size * size:
            _, hits = tell(request.block_hashes, request.num_tokens - 1)
            self._group_hits[request.request_id] = list(map(int, hits))

    def scheduled(self, one: observer.ObservedPass) -> None:
        """Record a pass: its requests, and the blocks that they were given."""
        scheduler, numbers, output = self._scheduler, self._numbers, one.scheduled
        new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
        context = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        blocks: list[list[Any]] = []
        for each in new:
            context[each.req_id] = each.num_computed_tokens
            blocks.append([numbers[each.req_id], True, [list(ids) for ids in each.block_ids]])
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if ids is not None:
                resumed = name in cached.resumed_req_ids
                blocks.append([numbers[name], resumed, [list(group) for group in ids]])
        scheduled = output.num_scheduled_tokens
        self._put(
            Scheduled(
                one.step,
                one.start_ns,
                one.end_ns,
                scheduler.get_request_counts()[1],
                scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                one.preempted,
                [numbers[name] for name in one.ended],
                # `map` takes less of the engine's time than a comprehension (bench/record.py).
                list(map(numbers.__getitem__, scheduled)),
                list(scheduled.values()),
                list(map(context.__getitem__, scheduled)),
                [[numbers[name], tokens] for name, tokens in one.found.items()],
                blocks,
                self._counts.at_schedule(numbers, output),
                [
                    [numbers[name], self._group_hits.pop(name)]
                    for name in one.found
                    if name in self._group_hits
                ],
            )
        )
        for name in {*one.ended}:
            del self._arrivals[numbers.pop(name)]
            self._group_hits.pop(name, None)

    def computed(self, one: observer.ObservedPass, output: Any) -> None:
        """Keep what the output counts, before vLLM cuts what ends."""
        scheduled = one.scheduled
        self._told = self._counts.at_output(self._numbers, self._scheduler, scheduled, output)

    def sampled(self, one: observer.ObservedPass, output_ns: int, output: Any, given: Any) -> None:
        """Record how many tokens the pass gave to whom."""
        requests, tokens = list[int](), list[int]()
        for outputs in given.values():
            for each in outputs.outputs:
                if each.new_token_ids:
                    requests.append(self._numbers[each.request_id])
                    tokens.append(len(each.new_token_ids))
        end_ns = time.monotonic_ns()
        self._put(Sampled(one.step, output_ns, end_ns, requests, tokens, self._told))

    def preempted(self, loss: observer.Loss) -> None:
        """Record a preemption."""
        number = self._numbers[loss.request.request_id]
        blocks = [*loss.group_blocks]
        self._put(Preempted(loss.step, loss.time_ns, number, loss.tokens, blocks, loss.shared))

    def ended(self, time_ns: int, request: Any) -> None:
        """Record how a request ended."""
        number = self._numbers[request.request_id]
        status, came_ns = _ending(request), self._arrivals[number]
        prompt, given, most = (
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.max_tokens,
        )
        preemptions = request.num_preemptions
        later = list(request.block_hashes[self._full_blocks(request) :])
        self._put(Ended(number, time_ns, status, preemptions, given, later))
        self._done.append(Done(number, came_ns, prompt, most, time_ns, status, preemptions, given))

    def shut_down(self) -> None:
        """Write the remaining records."""
        self._writer.close()


def _ending(request: Any) -> str:
    status: str = request.status.name
    if status == "FINISHED_ABORTED" and getattr(request.sampling_params, "stop", None):
        return STOPPED_OR_ABORTED
    return status
