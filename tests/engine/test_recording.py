"""What the scheduler, the layer timer and the serving loop note, by a clock that the test sets."""

from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from vllm.v1.core.sched.scheduler import Scheduler

from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.engine.layers import LayerTimer
from kvscope.engine.marks import Marks
from kvscope.engine.overflow.forecast import Forecast
from kvscope.engine.overflow.host_tier import HostTier
from kvscope.engine.overflow.policy import OverflowPolicy
from kvscope.engine.port import Finished
from kvscope.engine.recording import Recording, ScheduledRequest
from kvscope.engine.scheduler import RecordingScheduler
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


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, time: Time) -> RecordingScheduler:
    """A scheduler whose vLLM takes 5 ms to schedule and 3 ms to take in what a pass gave."""
    made = object.__new__(RecordingScheduler)
    made.recording, made.marks, made.tracer = Recording(), Marks(), None
    made.block_size, made.clock, made._rank, made._allocated = 4, time, None, {}
    made.kv_groups, made.one_block_table = (), True
    made._undone, made._idle_since_ns = None, None
    made.batching, made.overflow = BatchingPolicy(name="b"), OverflowPolicy(name="o")
    made._finished, made._preempted, made._in_flight = set(), set(), None
    made.connector, made.tier, made.forecast = None, HostTier(), Forecast(made)
    made.waiting, made._free = [], SimpleNamespace(num_free_blocks=9)  # type: ignore[assignment]
    monkeypatch.setattr(Scheduler, "schedule", lambda self, _: time.take(5, self.planned.pop(0)))
    monkeypatch.setattr(Scheduler, "update_from_output", lambda *_: time.take(3, "outputs"))
    return made


def test_a_pass_lasts_from_before_its_schedule_until_its_tokens_are_taken_in(
    watched: Any, time: Time
):
    watched.planned, began = [scheduled(4)], time.ns
    plan = watched.schedule()
    time.take(100)
    answer = SimpleNamespace(sampled_token_ids=[[5, 6]], req_id_to_index={"7-ab": 0})
    assert watched.update_from_output(plan, answer) == "outputs"
    (record,) = watched.recording.passes
    instants = record.schedule_start_ns, record.schedule_end_ns, record.output_ns, record.end_ns
    assert [(instant - began) / MS for instant in instants] == [0, 5, 105, 108]
    (row,) = record.batch()
    assert row == ScheduledRequest("7", 4, 9, [5, 6], 0)


def test_an_empty_schedule_is_no_pass_and_the_next_one_tells_of_it(watched: Any):
    empty, full = scheduled(0, ("a",), ("x",)), scheduled(4, ("b",), ("y",))
    watched.planned = [empty, full, scheduled(4)]
    watched.update_from_output(watched.schedule(), None)
    assert watched.recording.passes == []
    watched.schedule()
    watched.schedule()
    one, other = watched.recording.passes
    assert (one.preempted, one.finished_before) == (2, {"x", "y"})
    assert (other.preempted, other.finished_before) == (0, set())


def test_a_pass_notes_what_waits_and_what_is_free_once_it_is_scheduled(
    watched: Any, monkeypatch: pytest.MonkeyPatch
):
    def schedule(self: Any, _: bool) -> Any:
        self.waiting, self._free.num_free_blocks = ["one"], 2
        self.tier.host_blocks_used = 6
        return scheduled(4)

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    watched.waiting = ["one", "two", "three"]
    watched.tier = SimpleNamespace(host_blocks_used=0)
    watched.schedule()
    (record,) = watched.recording.passes
    assert (record.waiting, record.kv_blocks_free, record.host_blocks_used) == (1, 2, 6)


# --- the layer timer


class Slow(torch.nn.Module):
    """A transformer block that takes its time."""

    def __init__(self, time: Time, ms: float) -> None:
        super().__init__()
        self.time, self.ms = time, ms

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.time.take(self.ms, hidden)


def test_a_layer_takes_from_the_start_of_its_forward_to_its_end(watched: Any, time: Time):
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(Slow(time, ms) for ms in (2, 11, 4))
    assert LayerTimer(watched).install(model) == 3
    watched.recording.passes += [None, None]
    began = time.ns
    for block in model.blocks:
        time.take(1)
        block(torch.zeros(1))
    found = np.array(watched.recording.layers).reshape(-1, 4)
    assert found[:, :2].tolist() == [[1, 0], [1, 1], [1, 2]]
    assert ((found[:, 2:] - began) / MS).tolist() == [[1, 3], [4, 15], [16, 20]]


def test_what_is_due_before_the_layers_of_a_pass_is_done_once_and_then_no_more(
    watched: Any, time: Time
):
    model, done = torch.nn.Module(), list[int]()
    model.blocks = torch.nn.ModuleList(Slow(time, 1) for _ in range(2))
    timer = LayerTimer(watched)
    timer.install(model)
    watched.recording.passes.append(None)
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
