"""Times for which an engine's threads ran and waited for a CPU, from schedstat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.run.readings import ThreadTime, read_threads, threads_between

SECOND = 10**9
TIMES = st.integers(0, 100 * SECOND)
THREADS = st.dictionaries(st.sampled_from("abcdef"), st.builds(ThreadTime, TIMES, TIMES))


def share(ran_s: float, waited_s: float) -> float:
    """w: the share of its time in which a thread was ready without a CPU."""
    return waited_s / (ran_s + waited_s) if ran_s else 0.0


@given(TIMES.filter(bool), TIMES)
def test_one_thread_counts_as_it_is(ran, waited):
    result = threads_between({}, {"a": ThreadTime(ran, waited)})
    assert result == pytest.approx((ran / SECOND, waited / SECOND))


@given(THREADS, THREADS)
def test_together_they_ran_what_each_did_and_waited_no_larger_a_share_than_one(begin, more):
    end = {
        i: ThreadTime(
            more[i].ran_ns + (begin[i].ran_ns if i in begin else 0),
            more[i].waited_ns + (begin[i].waited_ns if i in begin else 0),
        )
        for i in more
    }
    ran_s, waited_s = threads_between(begin, end)
    assert ran_s == pytest.approx(sum(thread.ran_ns for thread in more.values()) / SECOND)
    shares = [
        share(thread.ran_ns, thread.waited_ns) for thread in more.values() if thread.ran_ns
    ] or [0.0]
    result = share(ran_s, waited_s)
    assert min(shares) - 1e-9 <= result <= max(shares) + 1e-9


@given(st.floats(1, 100), st.floats(0, 0.9), st.floats(0, 1e3), st.integers(1, 50))
def test_a_thread_that_does_little_counts_for_little(ran_s, waiting, idles_s, wakings):
    """It wakes often and waits long each time, yet the engine loses no more than it does."""
    engine = ThreadTime(int(ran_s * SECOND), int(ran_s * SECOND * waiting / (1 - waiting)))
    helper = ThreadTime(int(ran_s * SECOND / 1000), int(idles_s * wakings * SECOND))
    alone = share(*threads_between({}, {"a": engine}))
    result = share(*threads_between({}, {"a": engine, "b": helper}))
    assert result == pytest.approx(alone, abs=1.01e-3)


@given(THREADS)
def test_a_thread_that_did_not_run_did_not_wait(begin):
    assert threads_between(begin, begin) == (0.0, 0.0)


def test_a_thread_that_ended_or_began_meanwhile():
    begin = {"old": ThreadTime(5 * SECOND, SECOND), "a": ThreadTime(SECOND, 0)}
    end = {"a": ThreadTime(2 * SECOND, 0), "new": ThreadTime(SECOND, SECOND)}
    ran_s, waited_s = threads_between(begin, end)
    assert ran_s == pytest.approx(2)
    assert share(ran_s, waited_s) == pytest.approx(0.25)


def test_threads_are_read_from_schedstat():
    result = read_threads({"1": "100 20 3\n", "2": "", "3": "7 0 1"})
    assert result == {"1": ThreadTime(100, 20), "3": ThreadTime(7, 0)}
    assert read_threads({"1": ""}) is None
