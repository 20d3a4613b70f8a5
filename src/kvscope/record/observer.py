"""Observes one scheduler of vLLM: takes plain numbers of what its methods were given and returned.

The methods of the instance are wrapped, so the scheduler keeps its class, whichever that is, and
its behaviour. With asynchronous scheduling the next pass is scheduled before the output of the one
before is there; a pass is recognised by its `SchedulerOutput`.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from kvscope.engine.marks import Marks
from kvscope.ranges import FORWARD_PASS, REPEAT
from kvscope.record.records import (
    STOPPED_OR_ABORTED,
    Arrival,
    Ended,
    Event,
    Live,
    Ordered,
    Preempted,
    Sampled,
    Scheduled,
)
from kvscope.record.records import Segment as SegmentStart
from kvscope.record.writer import Writer

Take = Callable[..., None]
_MOST_IN_FLIGHT = 256  # passes whose output never comes are forgotten beyond it


class SchedulerObserver:
    """Gives what a scheduler does to a writer; a fault of it ends the recording, nothing else."""

    def __init__(
        self, scheduler: Any, writer: Writer, facts: dict[str, Any], marks: Marks | None = None
    ) -> None:
        self._scheduler, self._writer, self._facts = scheduler, writer, facts
        self._marks = marks or Marks()
        self._marks.push(REPEAT)
        self._step = 0  # of the next pass
        self._requests = 0  # that came so far
        self._segments = 0
        self._dropped = 0
        self._dropping = False
        self._numbers: dict[str, int] = {}  # of requests by vLLM's ids
        self._arrivals: dict[int, int] = {}
        self._ended: list[tuple[str, int]] = []  # since the pass before
        self._preempted = 0  # reported by schedules without a pass
        self._hits: dict[str, int] = {}
        self._accepted: list[list[int]] = []  # of the pass whose output is being processed
        self._in_flight: dict[int, tuple[Any, int]] = {}  # passes by the identity of their schedule
        self._follow(scheduler, "add_request", after=self._arrived)
        self._follow(scheduler, "schedule", before=self._next_segment, after=self._scheduled)
        self._follow(scheduler, "update_from_output", before=self._computed, after=self._sampled)
        self._follow(scheduler, "_preempt_request", before=self._preempts)
        self._follow(scheduler, "_free_request", after=self._freed)
        self._follow(scheduler, "shutdown", after=self._shut_down)
        manager = scheduler.kv_cache_manager
        self._follow(manager, "record_prefix_cache_stats", after=self._found)
        self._safely(self._next_segment)

    def _follow(
        self, owner: Any, name: str, before: Take | None = None, after: Take | None = None
    ) -> None:
        """Have `before` called with a method's arguments, `after` with its start and result too."""
        method = getattr(owner, name)

        @wraps(method)
        def observed(*args: Any, **kwargs: Any) -> Any:
            start_ns = time.monotonic_ns()
            if before is not None:
                self._safely(before, *args, **kwargs)
            result = method(*args, **kwargs)
            if after is not None:
                self._safely(after, start_ns, result, *args, **kwargs)
            return result

        setattr(owner, name, observed)

    def _safely(self, take: Take, *args: Any, **kwargs: Any) -> None:
        if not self._writer.open:
            return
        try:
            take(*args, **kwargs)
        except Exception as error:
            self._writer.stop(f"{type(error).__name__} in {take.__name__}: {error}")

    def _put(self, event: Event) -> None:
        if self._dropping or self._writer.full:
            self._dropping = True
            self._dropped += 1
            return
        self._writer.put(event)

    # ------------------------------------------------------------------ what is observed

    def _next_segment(self, *_: Any, **__: Any) -> None:
        """Begin a segment, if the writer wants one or records had to be dropped."""
        writer = self._writer
        if not (writer.wants_segment or self._dropping) or not writer.caught_up:
            return
        writer.wants_segment = self._dropping = False
        now, utc = time.monotonic_ns(), time.time_ns()
        number, self._segments = self._segments, self._segments + 1
        writer.put(SegmentStart(self._facts, number, now, utc, self._step, self._dropped))
        for name, request in self._scheduler.requests.items():
            if name in self._numbers and not request.is_finished():
                writer.put(self._live(self._numbers[name], request))

    def _live(self, number: int, request: Any) -> Live:
        held = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        return Live(
            number,
            self._arrivals[number],
            request.num_prompt_tokens,
            request.max_tokens,
            self._hashes(request),
            request.num_output_tokens,
            request.num_computed_tokens,
            request.num_preemptions,
            [list(group) for group in held],
        )

    def _hashes(self, request: Any) -> list[Any]:
        """vLLM's hashes of the full blocks of a prompt, which it has with a prefix cache."""
        full = request.num_prompt_tokens // self._facts["hash_block_size"]
        return list(request.block_hashes[:full])

    def _arrived(self, start_ns: int, _: Any, request: Any) -> None:
        if request.request_id in self._numbers:
            return  # more input of a session
        number, self._requests = self._requests, self._requests + 1
        self._numbers[request.request_id] = number
        self._arrivals[number] = start_ns
        prompt, most = request.num_prompt_tokens, request.max_tokens
        self._put(Arrival(number, start_ns, prompt, most, self._hashes(request)))

    def _found(self, _: int, __: Any, request: Any, num_hits: int) -> None:
        self._hits[request.request_id] = num_hits

    def _scheduled(self, start_ns: int, output: Any, *_: Any, **__: Any) -> None:
        end_ns = time.monotonic_ns()
        self._preempted += len(output.preempted_req_ids or ())
        if output.kv_connector_metadata is not None:
            self._ordered(end_ns, output.kv_connector_metadata)
        if not output.total_num_scheduled_tokens:
            return  # ends and preemptions are reported with the next pass
        scheduler, numbers, found = self._scheduler, self._numbers, self._hits
        new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
        context = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        blocks: list[list[Any]] = []
        for one in new:
            context[one.req_id] = one.num_computed_tokens
            blocks.append([numbers[one.req_id], True, [list(ids) for ids in one.block_ids]])
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if ids is not None:
                resumed = name in cached.resumed_req_ids
                blocks.append([numbers[name], resumed, [list(group) for group in ids]])
        scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        step, self._step = self._step, self._step + 1
        self._put(
            Scheduled(
                step,
                start_ns,
                end_ns,
                scheduler.get_request_counts()[1],
                scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                self._preempted,
                [number for _, number in self._ended],
                # `map` takes less of the engine's time than a comprehension (bench/record.py).
                list(map(numbers.__getitem__, scheduled)),
                list(scheduled.values()),
                list(map(context.__getitem__, scheduled)),
                [[numbers[n], found.pop(n)] for n in scheduled if n in found] if found else [],
                blocks,
                [[numbers[n], len(d)] for n, d in drafts.items()] if drafts else [],
            )
        )
        self._preempted = 0
        if self._ended:
            self._forget()
        self._in_flight[id(output)] = (output, step)  # kept, so that no other has its identity
        if len(self._in_flight) > _MOST_IN_FLIGHT:
            del self._in_flight[next(iter(self._in_flight))]
        self._marks.push(FORWARD_PASS, step)

    def _ordered(self, time_ns: int, orders: Any) -> None:
        """The copies that vLLM's offloading orders; other connectors' are not known."""
        loads, stores = (getattr(orders, f"{name}_jobs", {}) for name in ("load", "store"))
        awaited = getattr(orders, "jobs_to_flush", None) or ()
        if loads or stores or awaited:
            into = [self._job(number, job, job.dst_spec) for number, job in loads.items()]
            out = [self._job(number, job, job.src_spec) for number, job in stores.items()]
            self._put(Ordered(self._step, time_ns, into, out, sorted(awaited)))

    def _job(self, number: int, job: Any, blocks: Any) -> list[int]:
        """A job, given the blocks of the KV cache that it reads or fills."""
        request = self._numbers[job.req_id]
        return [number, request, len(blocks.block_ids), int(blocks.block_indices[0])]

    def _forget(self) -> None:
        for name, number in self._ended:
            self._arrivals.pop(number, None)
            self._hits.pop(name, None)
            if self._numbers.get(name) == number:
                del self._numbers[name]
        self._ended.clear()

    def _computed(self, scheduled: Any, output: Any, *_: Any, **__: Any) -> None:
        """A pass is over. Drafts that were right are counted before vLLM cuts what ends."""
        if id(scheduled) in self._in_flight:
            self._marks.pop()
        self._accepted = []
        for name in scheduled.scheduled_spec_decode_tokens:
            request = self._scheduler.requests.get(name)
            if request is not None and not request.is_finished() and output.sampled_token_ids:
                tokens = output.sampled_token_ids[output.req_id_to_index[name]]
                self._accepted.append([self._numbers[name], max(0, len(tokens) - 1)])

    def _sampled(self, start_ns: int, result: Any, output: Any, *_: Any, **__: Any) -> None:
        if id(output) not in self._in_flight:
            return  # it was no pass
        _, step = self._in_flight.pop(id(output))
        requests, tokens = list[int](), list[int]()
        for outputs in result.values():
            for one in outputs.outputs:
                if one.new_token_ids:
                    requests.append(self._numbers[one.request_id])
                    tokens.append(len(one.new_token_ids))
        end_ns = time.monotonic_ns()
        self._put(Sampled(step, start_ns, end_ns, requests, tokens, self._accepted))

    def _preempts(self, request: Any, *_: Any, **__: Any) -> None:
        groups = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        held = [[block for block in group if not block.is_null] for group in groups]
        self._put(
            Preempted(
                self._step,
                time.monotonic_ns(),
                self._numbers[request.request_id],
                request.num_computed_tokens,
                list(map(len, held)),
                sum(block.ref_cnt > 1 for group in held for block in group),
            )
        )

    def _freed(self, start_ns: int, _: Any, request: Any, *__: Any, **___: Any) -> None:
        name = request.request_id
        number = self._numbers[name]
        self._ended.append((name, number))
        status, tokens = _ending(request), request.num_output_tokens
        self._put(Ended(number, start_ns, status, request.num_preemptions, tokens))

    def _shut_down(self, *_: Any, **__: Any) -> None:
        self._writer.close()


def _ending(request: Any) -> str:
    status: str = request.status.name
    if status == "FINISHED_ABORTED" and getattr(request.sampling_params, "stop", None):
        return STOPPED_OR_ABORTED
    return status
