"""Traced runs of the real engine: the oracles hold, and tracing changes nothing.

Other experiments than these: pytest
packages/kvscope-kernels/tests/engine/test_traced_runs.py --event-seeds 100-119
--event-models tiny-opt
"""

from typing import Any

import pytest

from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500), pytest.mark.representative]
MOST_THREADS = 3  # of the random experiments


@pytest.fixture(scope="module")
def traced(request: pytest.FixtureRequest, warm: Warm) -> list[dict[str, Any]]:
    """Results of the random experiments."""
    first, last = map(int, request.config.getoption("--event-seeds").split("-"))
    models = request.config.getoption("--event-models").split(",")
    return warm.call(trace_all, range(first, last + 1), models, threads=MOST_THREADS)


def trace_all(seeds: range, models: list[str]) -> list[dict[str, Any]]:
    from traced_runs import compared

    return [compared(seed, models) for seed in seeds]


def test_events_are_recorded_and_none_is_dropped(traced):
    assert all(case["events"] > 0 and not case["dropped"] for case in traced), traced


def test_no_oracle_is_violated(traced):
    assert not [case for case in traced if case["violated"]]


def test_every_transformer_block_gives_the_same_bits_with_tracing_and_without(traced):
    assert all(case["same_bits"] and case["same_tokens"] for case in traced), traced


def test_tokens_are_those_of_plain_attention_in_float32(traced):
    exact = [case for case in traced if "float32" in case["settings"]]
    assert exact
    assert all(case["plain_tokens"] == 1 for case in exact), exact
