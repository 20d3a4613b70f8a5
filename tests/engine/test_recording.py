"""Records of a scheduler, its layers and its requests, by a clock that the test sets."""

from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.engine.layers import LayerTimer
from kvscope.engine.marks import Marks
from kvscope.engine.overflow.host_tier import HostTier
from kvscope.engine.port import Finished
from kvscope.engine.recording import Recording, ScheduledRequest
from kvscope.engine.vllm.run_recorder import RunRecorder
from kvscope.run.progress import Progress
from kvscope.run.recorder import RequestState
from kvscope.run.serving import ServingResult, requests_table, serve
from kvscope.run.session import find_leaks
from kvscope.workload.requests import Request

pytestmark = pytest.mark.engine
MS = 1_000_000


class Time:
    """A clock that stands still until somebody takes his time."""

    def __init__(self) -> None:
        self.ns = 7 * MS

    def take(self, ms: float, result: Any = None) -> Any:
        """Let some time pass, and give a result."""
        self.ns += round(ms * MS)
        return result

    def now_ns(self) -> int:
        return self.ns

    def wait(self, seconds: float) -> None:
        self.take(1000 * seconds)


@pytest.fixture
def time() -> Time:
    """The clock of the device."""
    return Time()


# --- the scheduler


def scheduled(tokens: int, preempted: tuple[str, ...] = (), finished: tuple[str, ...] = ()) -> Any:
    """A schedule of a request that runs already, as far as it is looked at."""
    cached = SimpleNamespace(req_ids=["7-ab"], num_computed_tokens=[9])
    return SimpleNamespace(
        total_num_scheduled_tokens=tokens,
        num_scheduled_tokens={"7-ab": tokens},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        kv_connector_metadata=None,
        finished_req_ids={*finished},
        preempted_req_ids={*preempted},
    )


class Scheduling:
    """A scheduler that takes 5 ms to schedule and 3 ms to take in what a pass gave."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.planned: list[Any] = []
        self.waiting, self.tier = list[str](), HostTier()
        self.free = SimpleNamespace(num_free_blocks=9)
        self.kv_cache_manager = SimpleNamespace(
            block_pool=SimpleNamespace(free_block_queue=self.free),
            record_prefix_cache_stats=lambda request, num_hits: None,
        )
        self.ranks, self.prefix_cache, self.one_block_table = False, None, True

    def add_request(self, request: Any) -> None:
        """Take a request."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return self.time.take(5, self.planned.pop(0))

    def update_from_output(self, plan: Any, output: Any) -> str:
        return self.time.take(3, "outputs")  # type: ignore[no-any-return]

    def has_unfinished_requests(self) -> bool:
        return True

    def _free_request(self, request: Any) -> None:
        """A request has ended."""

    def _preempt_request(self, request: Any) -> None:
        """A request loses its blocks."""

    def shutdown(self) -> None:
        """End."""

    def end(self, *names: str) -> None:
        for name in names:
            self._free_request(SimpleNamespace(request_id=name, num_preemptions=0))


@pytest.fixture
def scheduler(time: Time) -> Scheduling:
    """The scheduler that is observed."""
    return Scheduling(time)


@pytest.fixture
def recorder(scheduler: Any, time: Time) -> RunRecorder:
    """The recorder of the scheduler."""
    made = RunRecorder(time)
    made.observe(scheduler)
    return made


def test_a_pass_lasts_from_before_its_schedule_until_its_tokens_are_taken_in(
    recorder: RunRecorder, scheduler: Scheduling, time: Time
):
    scheduler.planned, began = [scheduled(4)], time.ns
    plan = scheduler.schedule()
    assert {*recorder.observer.under_way} == {"7-ab"}
    time.take(100)
    answer = SimpleNamespace(sampled_token_ids=[[5, 6]], req_id_to_index={"7-ab": 0})
    assert scheduler.update_from_output(plan, answer) == "outputs"
    assert not recorder.observer.under_way
    (record,) = recorder.recording.passes
    instants = record.schedule_start_ns, record.schedule_end_ns, record.output_ns, record.end_ns
    assert [(instant - began) / MS for instant in instants] == [0, 5, 105, 108]
    (row,) = record.batch()
    assert row == ScheduledRequest("7", 4, 9, [5, 6], 0)


def test_an_empty_schedule_is_no_pass_and_the_next_one_tells_of_it(
    recorder: RunRecorder, scheduler: Scheduling
):
    scheduler.planned = [scheduled(0, ("a",)), scheduled(4, ("b",)), scheduled(4)]
    scheduler.end("x-1")
    scheduler.update_from_output(scheduler.schedule(), None)
    assert recorder.recording.passes == []
    scheduler.end("y-1")
    scheduler.schedule()
    scheduler.schedule()
    one, other = recorder.recording.passes
    assert (one.preempted, one.finished_before) == (2, ["x", "y"])
    assert (other.preempted, other.finished_before) == (0, [])


def test_events_of_a_repeat_are_not_reported_in_the_next(
    recorder: RunRecorder, scheduler: Scheduling
):
    scheduler.planned = [scheduled(4), scheduled(0, ("a",)), scheduled(4)]
    scheduler.schedule()
    scheduler.end("x-1")
    scheduler.schedule()
    first, second = recorder.recording, Recording()
    recorder.begin(second, Marks())
    scheduler.schedule()
    (record,) = second.passes
    assert (record.preempted, record.finished_before, record.load_wait_ns) == (0, [], 0)
    assert (len(first.passes), recorder.observer.step) == (1, 1)


@pytest.mark.parametrize(("asynchronous", "waited_ms"), [(False, 0), (True, 25)])
def test_a_pass_waits_for_copies_since_the_first_empty_schedule_before_it(
    scheduler: Any, time: Time, asynchronous: bool, waited_ms: int
):
    scheduler.tier.asynchronous = asynchronous
    scheduler._update_waiting_for_remote_kv = lambda request: None
    recorder = RunRecorder(time)
    recorder.observe(scheduler)
    scheduler.planned = [scheduled(0), scheduled(0), scheduled(4), scheduled(4)]
    for _ in range(2):
        scheduler.schedule()
        time.take(7.5)
    scheduler.schedule()
    scheduler.schedule()
    results = [record.load_wait_ns / MS for record in recorder.recording.passes]
    assert results == [waited_ms, 0]


def test_nobody_waits_for_copies_once_all_requests_have_ended(scheduler: Any, time: Time):
    scheduler.tier.asynchronous = True
    scheduler._update_waiting_for_remote_kv = lambda request: None
    scheduler.has_unfinished_requests = lambda: False
    recorder = RunRecorder(time)
    recorder.observe(scheduler)
    scheduler.planned = [scheduled(0), scheduled(4)]
    scheduler.schedule()
    scheduler.end("x-1")
    scheduler.schedule()
    assert recorder.recording.passes[0].load_wait_ns == 0


def test_a_pass_records_waiting_requests_and_free_blocks_after_its_schedule(time: Time):
    class Busy(Scheduling):
        def schedule(self, throttle_prefills: bool = False) -> Any:
            self.waiting, self.free.num_free_blocks = ["one"], 2
            self.tier.host_blocks_used = 6  # type: ignore[misc]
            return scheduled(4)

    busy: Any = Busy(time)
    busy.waiting = ["one", "two", "three"]
    busy.tier = SimpleNamespace(host_blocks_used=0, asynchronous=False)
    recorder = RunRecorder(time)
    recorder.observe(busy)
    busy.schedule()
    (record,) = recorder.recording.passes
    assert (record.waiting, record.kv_blocks_free, record.host_blocks_used) == (1, 2, 6)


def test_a_scheduler_that_is_released_has_its_own_methods_and_is_observed_no_more(
    recorder: RunRecorder, scheduler: Scheduling
):
    assert "schedule" in vars(scheduler)
    recorder.observer.release()
    assert not [name for name, value in vars(scheduler).items() if callable(value)]
    scheduler.planned = [scheduled(4)]
    scheduler.schedule()
    assert recorder.recording.passes == []


# --- the layer timer


class Slow(torch.nn.Module):
    """A transformer block that takes its time."""

    def __init__(self, time: Time, ms: float) -> None:
        super().__init__()
        self.time, self.ms = time, ms

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.time.take(self.ms, hidden)


def test_a_layer_takes_from_the_start_of_its_forward_to_its_end(recorder: RunRecorder, time: Time):
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(Slow(time, ms) for ms in (2, 11, 4))
    assert LayerTimer(recorder).install(model) == 3
    recorder.recording.passes += [None, None]  # type: ignore[list-item]
    began = time.ns
    for block in model.blocks:
        time.take(1)
        block(torch.zeros(1))
    result = np.array(recorder.recording.layers).reshape(-1, 4)
    assert result[:, :2].tolist() == [[1, 0], [1, 1], [1, 2]]
    assert ((result[:, 2:] - began) / MS).tolist() == [[1, 3], [4, 15], [16, 20]]


def test_what_is_due_before_the_layers_of_a_pass_is_done_once_and_then_no_more(
    recorder: RunRecorder, time: Time
):
    model, done = torch.nn.Module(), list[int]()
    model.blocks = torch.nn.ModuleList(Slow(time, 1) for _ in range(2))
    timer = LayerTimer(recorder)
    timer.install(model)
    recorder.recording.passes.append(None)  # type: ignore[arg-type]
    hook = timer.before_layers(lambda: done.append(time.ns))
    began = time.ns
    for block in model.blocks:
        block(torch.zeros(1))
    hook.remove()
    model.blocks[0](torch.zeros(1))
    assert done == [began]


# --- serving


class Server:
    """An engine that serves one request at a time, a token in 10 ms."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.platform = SimpleNamespace(clock=time, after_pass=lambda: None)
        self.due: dict[str, int] = {}  # tokens that a request is still to be given
        self.given: dict[str, list[int]] = {}
        self.handed_over_ms: dict[str, float] = {}

    def submit(
        self, name: str, prompt: list[int], output_tokens: int, outputs: list[int] | None = None
    ) -> None:
        self.due[name], self.given[name] = output_tokens, []
        self.handed_over_ms[name] = self.time.ns / MS - 7

    def has_unfinished_requests(self) -> bool:
        return bool(self.due)

    def settle(self) -> None:
        """Nothing is copied."""

    def abort(self, names: list[str]) -> None:
        for name in names:
            del self.due[name]

    def step(self) -> list[Any]:
        name = next(iter(self.due))
        self.given[name].append(len(self.given[name]))
        self.due[name] -= 1
        self.time.take(10)
        if self.due[name]:
            return []
        del self.due[name]
        return [Finished(name, self.given[name], self.time.ns)]


def asked(*arrivals_ms: float, tokens: int = 3) -> list[Request]:
    prompt = np.arange(5, dtype=np.int32)
    return [Request(str(n), at / 1000, prompt, tokens) for n, at in enumerate(arrivals_ms)]


class Silent(Progress):
    """Progress that is not shown."""

    def __init__(self) -> None:
        """Without a file."""

    def advance(self, tokens: int) -> None:
        """Show nothing."""


def served_by(
    server: Server, requests: list[Request], timeout_s: float | None = None
) -> ServingResult:
    engine: Any = server
    return serve(engine, requests, Silent(), timeout_s)


def test_a_request_is_handed_over_when_it_arrives_or_when_the_pass_under_way_ends(time: Time):
    server = Server(time)
    served = served_by(server, asked(200, 0, 12, 230))
    # 12 falls into the pass from 10 to 20; 200 finds an idle engine; 230 the end of a pass.
    assert server.handed_over_ms == {"1": 0, "2": 20, "0": 200, "3": 230}
    assert served.outputs == {str(n): [0, 1, 2] for n in range(4)}


def test_a_request_is_given_up_once_its_time_since_arrival_is_over(time: Time):
    server = Server(time)
    served = served_by(server, asked(0, 5, 8, 300), timeout_s=0.055)
    # The third has its turn at 60, and its time was over at 63: the pass until 70 is its last.
    assert served.aborted_s == {"2": pytest.approx(0.07)}
    assert {*served.outputs} == {"0", "1", "3"}


def test_without_a_timeout_nobody_is_given_up(time: Time):
    assert served_by(Server(time), asked(*[0] * 50)).aborted_s == {}


def test_the_outcome_has_the_hash_of_all_tokens_and_the_count_of_preemptions(time: Time):
    request, *_ = asked(0)
    repeat: Any = SimpleNamespace(
        state=lambda _: RequestState(first_scheduled_s=1.0, first_token_s=2.0, finished_s=3.0),
        counted={"0": 4},
    )
    tokens = [5, 70_000, 5]
    served = ServingResult(time, origin_ns=0, duration_s=3.0, outputs={"0": tokens})
    (row,) = requests_table(repeat, 2, [request], served).to_dict("records")
    expected = sha256(np.array(tokens, "<i4").tobytes()).hexdigest()
    assert row["output_sha256"] == expected
    assert (row["output_tokens"], row["preemptions"], row["repeat"]) == (3, 4, 2)


# --- the session


@pytest.mark.parametrize(
    ("kv", "host", "expected"),
    [(0, 0, []), (3, 0, [(3, 0)]), (0, 2, [(0, 2)]), (1, 1, [(1, 1)])],
)
def test_blocks_that_are_left_in_use_are_told(kv: int, host: int, expected: list[Any]):
    engine: Any = SimpleNamespace(kv_blocks_used=kv, host_blocks_used=host)
    told = [{"repeat": 6, "kv_blocks": a, "host_blocks": b} for a, b in expected]
    assert find_leaks(engine, 6) == told
