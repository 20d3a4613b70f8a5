"""Observes one scheduler of vLLM: passes its methods' arguments and results to a recorder.

The methods of the instance are wrapped, so the scheduler keeps its class, whichever that is, and
its behaviour. With asynchronous scheduling the next pass is scheduled before the output of the one
before is there; a pass is recognised by its `SchedulerOutput`. Everything that is read here is the
same in all versions of vLLM that can be recorded (`engine.vllm.versions`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple

from kvscope.base.ranges import FORWARD_PASS
from kvscope.engine.marks import Marks

Take = Callable[..., None]
_MOST_IN_FLIGHT = 256  # passes whose output never comes are forgotten beyond it


class ObservedPass(NamedTuple):
    """A forward pass that was scheduled; requests by vLLM's ids."""

    step: int
    start_ns: int
    end_ns: int  # it has been scheduled
    scheduled: Any  # vLLM's `SchedulerOutput`
    ended: Sequence[str]  # requests that ended since the pass before
    preempted: int  # requests that were preempted since then
    found: Mapping[str, int]  # of its requests: tokens that they found in the prefix cache
    idle_since_ns: int | None  # the first of the empty schedules just before it; None without one


class Loss(NamedTuple):
    """State of a request just before it is preempted."""

    step: int  # the pass that is being scheduled
    time_ns: int
    request: Any  # vLLM's `Request`
    tokens: int  # in the cache
    group_blocks: Sequence[int]  # of each KV group
    shared: int  # of its blocks, those that other requests hold as well


class Recorder:
    """Takes what is observed of a scheduler. This one takes nothing."""

    def guarded(self, take: Take) -> Take:
        """Return a method of the observer as it is called: faults are raised here."""
        return take

    def begin_schedule(self) -> None:
        """A schedule begins."""

    def arrived(self, time_ns: int, request: Any) -> None:
        """A request, or more input of a request, has come to the scheduler."""

    def ordered(self, time_ns: int, orders: Any) -> None:
        """The KV connector has given orders with a schedule, which may be empty."""

    def scheduled(self, one: ObservedPass) -> None:
        """A pass has been scheduled."""

    def computed(self, one: ObservedPass, output: Any) -> None:
        """The output of a pass (`ModelRunnerOutput`) is there; vLLM has not looked at it yet."""

    def sampled(self, one: ObservedPass, output_ns: int, output: Any, given: Any) -> None:
        """The scheduler has taken in the output of a pass, and gives these `EngineCoreOutputs`."""

    def preempted(self, loss: Loss) -> None:
        """A request has been preempted."""

    def ended(self, time_ns: int, request: Any) -> None:
        """A request has ended: it was served, or aborted."""

    def shut_down(self) -> None:
        """The scheduler has been shut down."""


class SchedulerObserver:
    """Tells a recorder what a scheduler does; `step` is the pass to be scheduled next."""

    def __init__(
        self,
        scheduler: Any,
        recorder: Recorder,
        now_ns: Callable[[], int],
        marks: Marks | None = None,
    ) -> None:
        self.scheduler, self.recorder = scheduler, recorder
        self.marks = marks or Marks()
        self.step = 0
        self._now_ns = now_ns
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._in_flight: dict[int, ObservedPass] = {}  # by the identity of their schedule
        self._forget()
        self._lost: Loss | None = None
        self.follow(scheduler, "add_request", after=self._arrived)
        self.follow(scheduler, "schedule", before=self._schedules, after=self._scheduled)
        self.follow(scheduler, "update_from_output", before=self._computed, after=self._sampled)
        self.follow(scheduler, "_preempt_request", before=self._preempts, after=self._preempted)
        self.follow(scheduler, "_free_request", after=self._freed)
        self.follow(scheduler, "shutdown", after=self._shut_down)
        manager = scheduler.kv_cache_manager
        self.follow(manager, "record_prefix_cache_stats", after=self._found)

    def begin(self, marks: Marks) -> None:
        """Number passes from 0 from now on; no request is left."""
        self.step, self.marks = 0, marks
        self._forget()

    def follow(
        self, owner: Any, name: str, before: Take | None = None, after: Take | None = None
    ) -> None:
        """Wrap a method of an object.

        `before` is called with the time and the method's arguments, `after` with that time, the
        method's result and its arguments.
        """
        method, now_ns = getattr(owner, name), self._now_ns
        begins = before and self.recorder.guarded(before)
        ends = after and self.recorder.guarded(after)

        @wraps(method)
        def observed(*args: Any, **kwargs: Any) -> Any:
            start_ns = now_ns()
            if begins is not None:
                begins(start_ns, *args, **kwargs)
            result = method(*args, **kwargs)
            if ends is not None:
                ends(start_ns, result, *args, **kwargs)
            return result

        self._wrapped.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, observed)

    def release(self) -> None:
        """Give what was wrapped its own methods again."""
        while self._wrapped:
            owner, name, method = self._wrapped.pop()
            delattr(owner, name)
            if method is not None:
                setattr(owner, name, method)

    @property
    def under_way(self) -> Collection[str]:
        """The requests of the newest pass that has no output yet, by vLLM's ids."""
        newest = next(reversed(self._in_flight.values()), None)
        return () if newest is None else newest.scheduled.num_scheduled_tokens

    # ------------------------------------------------------------------ what is observed

    def _forget(self) -> None:
        """Reset observations after a pass; later ones belong to the next pass."""
        self._ended: list[str] = []
        self._preempted_names: set[str] = set()
        self._hits: dict[str, int] = {}
        self._idle_since_ns: int | None = None

    def _arrived(self, start_ns: int, _: Any, request: Any) -> None:
        self.recorder.arrived(start_ns, request)

    def _found(self, _: int, __: Any, request: Any, num_hits: int) -> None:
        self._hits[request.request_id] = num_hits

    def _schedules(self, *_: Any, **__: Any) -> None:
        self.recorder.begin_schedule()

    def _scheduled(self, start_ns: int, output: Any, *_: Any, **__: Any) -> None:
        end_ns = self._now_ns()
        if output.preempted_req_ids:
            self._preempted_names |= output.preempted_req_ids
        if output.kv_connector_metadata is not None:
            self.recorder.ordered(end_ns, output.kv_connector_metadata)
        if not output.total_num_scheduled_tokens:
            if self._idle_since_ns is None:
                self._idle_since_ns = start_ns
            return  # ends and preemptions are reported with the next pass
        observed = ObservedPass(
            self.step,
            start_ns,
            end_ns,
            output,
            self._ended,
            len(self._preempted_names),
            self._take_hits(output.num_scheduled_tokens),
            self._idle_since_ns,
        )
        self._ended, self._idle_since_ns = [], None
        self._preempted_names.clear()
        self.step += 1
        self._in_flight[id(output)] = observed  # kept, so that no other has its identity
        if len(self._in_flight) > _MOST_IN_FLIGHT:
            del self._in_flight[next(iter(self._in_flight))]
        self.recorder.scheduled(observed)
        self.marks.push(FORWARD_PASS, observed.step)

    def _take_hits(self, names: Collection[str]) -> Mapping[str, int]:
        """The hits of these requests, of each once; those of requests that have ended are lost."""
        if not self._hits:
            return {}
        taken = {name: self._hits.pop(name) for name in names if name in self._hits}
        for name in self._ended:
            self._hits.pop(name, None)
        return taken

    def _computed(self, _: int, scheduled: Any, output: Any, *__: Any, **___: Any) -> None:
        observed = self._in_flight.get(id(scheduled))
        if observed is not None:
            self.recorder.computed(observed, output)
            self.marks.pop()

    def _sampled(
        self, start_ns: int, given: Any, scheduled: Any, output: Any, *_: Any, **__: Any
    ) -> None:
        observed = self._in_flight.pop(id(scheduled), None)
        if observed is not None:  # else it was no pass
            self.recorder.sampled(observed, start_ns, output, given)

    def _preempts(self, start_ns: int, request: Any, *_: Any, **__: Any) -> None:
        groups = self.scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        blocks = [[block for block in group if not block.is_null] for group in groups]
        self._lost = Loss(
            self.step,
            start_ns,
            request,
            request.num_computed_tokens,
            list(map(len, blocks)),
            sum(block.ref_cnt > 1 for block in chain(*blocks)),
        )

    def _preempted(self, *_: Any, **__: Any) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            self.recorder.preempted(lost)

    def _freed(self, start_ns: int, _: Any, request: Any, *__: Any, **___: Any) -> None:
        self._ended.append(request.request_id)
        if self._idle_since_ns is not None and not self.scheduler.has_unfinished_requests():
            self._idle_since_ns = None
        self.recorder.ended(start_ns, request)

    def _shut_down(self, *_: Any, **__: Any) -> None:
        self.recorder.shut_down()
