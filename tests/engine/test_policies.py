"""Under all policies, the output tokens equal those of a run that never overflows.

Other workloads and models than these: pytest tests/engine/test_policies.py
--policy-seeds 100-119 --policy-models tiny-opt
"""

from collections import Counter
from typing import Any

import pytest

from tests.warm import Warm

from .cases import BATCHING, FAULTS, OVERFLOW, marked

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

Cases = dict[str, dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "served" in metafunc.fixturenames:
        models = metafunc.config.getoption("--policy-models").split(",")
        metafunc.parametrize("served", models, indirect=True, scope="module")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, warm: Warm) -> Cases:
    """Results of serving the random workloads with this model under every policy."""
    first, last = map(int, request.config.getoption("--policy-seeds").split("-"))
    return warm.call(serve_all, request.param, range(first, last + 1))


def serve_all(model: str, seeds: range) -> Cases:
    from .equal_tokens import compared

    return {case["case"]: case for case in compared(model, seeds)}


every_combination = pytest.mark.parametrize(
    "case", marked(f"{batching} {overflow}" for batching in BATCHING for overflow in OVERFLOW)
)


@every_combination
def test_tokens_equal_those_of_a_run_that_never_overflows(served: Cases, case: str):
    assert sum(map(len, served[case]["preempted"])) >= 5, "too few preemptions to show anything"
    assert not any(served[case]["differing"])


@every_combination
def test_every_block_is_free_in_the_end(served: Cases, case: str):
    assert not any(served[case]["left"])


@every_combination
def test_tokens_that_the_policy_keeps_are_not_recomputed(served: Cases, case: str):
    preemptions, kept = sum(map(len, served[case]["preempted"])), sum(served[case]["kept"])
    if "recompute" in case or "native" in case:  # what vLLM's offloading loads was not kept
        assert kept == 0
    elif "small-pool" in case:
        assert 0 < kept < preemptions
    elif "adaptive" in case:
        assert kept > 0
    else:
        assert kept == preemptions


def test_some_requests_are_preempted_several_times(served: Cases):
    for case in served.values():
        assert any(max(Counter(ids).values(), default=0) > 1 for ids in case["preempted"])


@pytest.mark.parametrize("fault", marked(FAULTS))
def test_a_policy_that_forgets_to_copy_or_copies_late_gives_other_tokens(served: Cases, fault: str):
    assert any(served[fault]["differing"])
