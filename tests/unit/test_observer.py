"""A scheduler that is observed does what it did; what its methods were given is told once."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.base.ranges import FORWARD_PASS
from kvscope.engine.marks import Marks
from kvscope.engine.observer import Loss, ObservedPass, Recorder, SchedulerObserver


def plan(*names: str, preempted: tuple[str, ...] = ()) -> Any:
    """A schedule of one token of each of these requests."""
    return SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1),
        total_num_scheduled_tokens=len(names),
        preempted_req_ids=set(preempted) or None,
        kv_connector_metadata=None,
    )


def request(name: str, tokens: int = 0) -> Any:
    return SimpleNamespace(request_id=name, num_computed_tokens=tokens)


def block(holders: int, null: bool = False) -> Any:
    return SimpleNamespace(ref_cnt=holders, is_null=null)


class Manager:
    """A KV-cache manager: two KV groups, the second of which has left a block behind."""

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Count hits."""

    def get_blocks(self, name: str) -> Any:
        return SimpleNamespace(blocks=[[block(1), block(2), block(3)], [block(0, True), block(1)]])


class Scheduler:
    """A scheduler that returns what it is given, or raises."""

    def __init__(self) -> None:
        self.kv_cache_manager = Manager()
        self.unfinished = True
        self.requests: dict[str, Any] = {}

    def add_request(self, request: Any) -> Any:
        return request

    def schedule(self, output: Any) -> Any:
        if isinstance(output, Exception):
            raise output
        return output

    def update_from_output(self, output: Any, sampled: Any) -> Any:
        return {0: sampled}

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        request.num_computed_tokens = 0

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> str:
        return f"freed {request.request_id}"

    def has_unfinished_requests(self) -> bool:
        return self.unfinished

    def shutdown(self) -> None:
        """End."""


class Noted(Recorder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.passes: list[ObservedPass] = []
        self.losses: list[Loss] = []
        self.sampled_steps: list[tuple[int, int]] = []

    def scheduled(self, one: ObservedPass) -> None:
        self.passes.append(one)

    def sampled(self, one: ObservedPass, output_ns: int, output: Any, given: Any) -> None:
        assert given == {0: output}
        self.sampled_steps.append((one.step, output_ns))

    def preempted(self, loss: Loss) -> None:
        self.losses.append(loss)


class Open(Marks):
    """Marks that know which of them are open."""

    def __init__(self) -> None:
        self.open: list[tuple[str, int]] = []

    def push(self, name: str, payload: int = 0) -> None:
        self.open.append((name, payload))

    def pop(self) -> None:
        self.open.pop()


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def scheduler(noted: Noted) -> Any:
    """An observed scheduler; each look at the clock takes a nanosecond."""
    made = Scheduler()
    SchedulerObserver(made, noted, count().__next__)
    return made


def test_what_a_method_returns_and_raises_is_what_it_did(scheduler: Any):
    output = plan("a")
    assert scheduler.schedule(output) is output
    assert scheduler._free_request(request("a"), delay_free_blocks=True) == "freed a"
    with pytest.raises(ZeroDivisionError):
        scheduler.schedule(ZeroDivisionError())
    assert type(scheduler) is Scheduler


def test_passes_overlap_and_each_has_its_own_output(noted: Noted, scheduler: Any):
    first, empty, second = plan("a"), plan(), plan("a", "b")
    for output in (first, empty, second):
        scheduler.schedule(output)
    for output in (first, empty, second):
        scheduler.update_from_output(output, "tokens")
    scheduler.update_from_output(first, "tokens")  # its output has come already
    assert [observed.step for observed in noted.passes] == [0, 1]
    assert [step for step, _ in noted.sampled_steps] == [0, 1]
    assert all(observed.start_ns < observed.end_ns for observed in noted.passes)


def test_a_pass_tells_of_the_time_since_the_one_before(noted: Noted, scheduler: Any):
    for names in ("a", "bc"):
        for name in names:
            scheduler._free_request(request(name))
        scheduler.schedule(plan(preempted=("v",)))
    scheduler.schedule(plan("d", preempted=("v", "w")))
    scheduler.schedule(plan("d"))
    one, other = noted.passes
    assert (one.ended, one.preempted) == (["a", "b", "c"], 2)
    assert one.idle_since_ns is not None
    assert one.idle_since_ns < one.start_ns
    assert (other.ended, other.preempted, other.idle_since_ns) == ([], 0, None)


def test_hits_are_told_once_and_with_the_pass_that_has_the_request(noted: Noted, scheduler: Any):
    for name in "abc":
        scheduler.kv_cache_manager.record_prefix_cache_stats(request(name), num_hits=16)
    scheduler._free_request(request("c"))
    scheduler.schedule(plan("a"))
    scheduler.schedule(plan("a", "b", "c"))
    assert [observed.found for observed in noted.passes] == [{"a": 16}, {"b": 16}]


def test_a_preempted_request_is_told_as_it_was_before(noted: Noted, scheduler: Any):
    victim = request("v", tokens=40)
    scheduler.schedule(plan("v"))
    scheduler._preempt_request(victim, 0.0)
    (loss,) = noted.losses
    assert (loss.request, loss.tokens, loss.step) == (victim, 40, 1)
    assert ([*loss.group_blocks], loss.shared) == ([3, 1], 2)


def test_passes_whose_output_never_comes_are_forgotten(noted: Noted):
    scheduler: Any = Scheduler()
    observer = SchedulerObserver(scheduler, noted, count().__next__)
    plans = [plan(str(number)) for number in range(300)]
    for output in plans:
        scheduler.schedule(output)
    for output in plans:
        scheduler.update_from_output(output, "tokens")
    assert len(noted.sampled_steps) == 256
    assert not observer.under_way


def test_a_range_is_open_while_a_pass_computes(noted: Noted):
    scheduler: Any = Scheduler()
    marks = Open()
    SchedulerObserver(scheduler, noted, count().__next__, marks)
    for step in range(2):
        output = scheduler.schedule(plan("a"))
        assert marks.open == [(FORWARD_PASS, step)]
        scheduler.update_from_output(output, "tokens")
        scheduler.update_from_output(scheduler.schedule(plan()), "tokens")
        assert marks.open == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_released_scheduler_has_its_own_methods(noted: Noted, wrapped: bool):
    scheduler: Any = Scheduler()
    if wrapped:
        scheduler.schedule = scheduler.add_request
    before = dict(vars(scheduler)), dict(vars(scheduler.kv_cache_manager))
    observer = SchedulerObserver(scheduler, noted, count().__next__)
    observer.follow(scheduler, "schedule", after=lambda *_: None)
    observer.release()
    assert (vars(scheduler), vars(scheduler.kv_cache_manager)) == before


def test_a_fault_of_a_run_s_recorder_is_raised(scheduler: Any, noted: Noted):
    noted.scheduled = lambda one: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        scheduler.schedule(plan("a"))
