"""When requests come: at their time, or once what they follow has finished."""

import numpy as np

from kvscope.run.arrivals import Arrivals
from kvscope.workload.requests import Request


def request(name: str, arrival_s: float | None = None, *after: str, think_s: float = 0) -> Request:
    return Request(name, arrival_s, np.zeros(1, np.int32), 1, after=after, think_s=think_s)


def taken(arrivals: Arrivals, now_s: float) -> list[tuple[float, str]]:
    return [(at, one.request_id) for at, one in arrivals.until(now_s)]


def test_requests_come_in_order_of_their_times() -> None:
    arrivals = Arrivals([request("a", 2.0), request("b", 1.0), request("c", 1.0)])
    assert arrivals.next_s == 1.0
    assert taken(arrivals, 0.9) == []
    assert taken(arrivals, 2.0) == [(1.0, "b"), (1.0, "c"), (2.0, "a")]
    assert not arrivals


def test_a_follower_comes_when_all_have_finished_and_it_has_thought() -> None:
    arrivals = Arrivals(
        [request("a", 0.0), request("b", 0.0), request("c", None, "a", "b", think_s=3)]
    )
    assert [name for _, name in taken(arrivals, 0.0)] == ["a", "b"]
    arrivals.finished("b", 5.0)
    assert not arrivals
    arrivals.finished("a", 7.0)
    assert arrivals.next_s == 10.0
    assert taken(arrivals, 9.9) == []
    assert taken(arrivals, 10.0) == [(10.0, "c")]
