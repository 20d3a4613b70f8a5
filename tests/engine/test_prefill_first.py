"""`prefill_first` shows vLLM's scheduler the waiting requests or the running ones, never both."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.engine.batching.prefill_first import PrefillFirst
from kvscope.engine.vllm.scheduler import GatedQueue, PolicyScheduler

pytestmark = pytest.mark.engine
LIMIT = 5


def request(name: str) -> Any:
    return SimpleNamespace(request_id=name, num_computed_tokens=0)


class Seen:
    """Requests that vLLM's scheduler was shown, and its schedule: so many tokens, time after
    time."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = [*tokens]
        self.waits: list[bool] = []
        self.runs: list[tuple[list[Any], bool]] = []
        self.room: list[int] = []

    def __call__(self, scheduler: Any) -> Any:
        self.waits.append(bool(scheduler.waiting))
        self.runs.append(([*scheduler.running], bool(scheduler.running)))
        self.room.append(scheduler.max_num_active_reqs)
        tokens = self.tokens.pop(0)
        if scheduler.waiting and tokens:
            scheduler.running.append(scheduler.waiting.popleft())
        return SimpleNamespace(
            total_num_scheduled_tokens=tokens, finished_req_ids={"x"}, preempted_req_ids={"y"}
        )


def scheduler(running: int, waiting: str, swapped: str = "", room: bool = True) -> Any:
    """A scheduler with so many running requests, and waiting requests of a letter each."""
    made: Any = object.__new__(PolicyScheduler)
    made.running = [request(f"r{n}") for n in range(running)]
    made.waiting = GatedQueue(request(name) for name in waiting)
    made.kv_holding_waiting, made._undone = GatedQueue(), None
    made.max_num_active_reqs, made.tier = LIMIT, [*swapped]
    made.has_room = lambda request: room
    return made


def fill(scheduler: Any, seen: Any) -> None:
    """Fill a pass; `seen` stands for vLLM."""
    PrefillFirst(name="prefill_first").fill(scheduler, lambda: seen(scheduler))


@pytest.mark.parametrize("running", [0, 3])
def test_waiting_prompts_make_a_pass_of_their_own(running: int):
    seen = Seen(40)
    made = scheduler(running, "ab")
    before = [*made.running]
    fill(made, seen)
    assert (seen.waits, seen.runs) == ([True], [([], running > 0)])
    assert seen.room == [LIMIT - running]  # those that pause keep their places
    assert [one.request_id for one in made.running[running:]] == ["a"]
    assert made.running[:running] == before
    assert made.max_num_active_reqs == LIMIT


def test_vllm_is_not_shown_a_prompt_that_it_would_refuse():
    seen = Seen(3)
    made = scheduler(3, "ab", room=False)
    fill(made, seen)
    assert seen.runs == [(made.running, True)]
    assert seen.waits == [False]


def test_the_running_requests_decode_where_no_prompt_fits():
    seen = Seen(0, 3)
    made = scheduler(3, "ab")
    fill(made, seen)
    assert seen.waits == [True, False]  # prompts that did not fit do not join
    assert seen.runs[1] == (made.running, True)
    assert seen.room == [LIMIT - 3, LIMIT]
    # The next schedule reports again the requests that ended during the empty one.
    assert (made._undone.finished_req_ids, made._undone.preempted_req_ids) == ({"x"}, {"y"})


def test_nothing_waits_and_the_running_requests_decode():
    seen = Seen(3)
    made = scheduler(3, "")
    fill(made, seen)
    assert (seen.waits, seen.runs) == ([False], [(made.running, True)])


def test_a_swapped_out_request_joins_the_decoding_requests():
    seen = Seen(3)
    made = scheduler(2, "sa", swapped="s")
    fill(made, seen)
    assert seen.waits == [True]
    assert seen.room == [LIMIT]
    assert [one.request_id for one in made.running] == ["r0", "r1", "s"]


def test_a_swapped_out_request_behind_a_prompt_does_not_join_its_pass():
    made = scheduler(1, "as", swapped="s")
    shown: list[bool] = []

    def schedule(scheduler: Any) -> Any:
        scheduler.waiting.popleft()
        shown.append(bool(scheduler.waiting))
        return SimpleNamespace(total_num_scheduled_tokens=40)

    fill(made, schedule)
    assert shown == [False]
