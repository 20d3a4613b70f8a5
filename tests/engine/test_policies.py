"""Whatever the policies, the tokens that come out are those of a run that never overflows.

Other workloads and models than these: pytest tests/engine/test_policies.py
--policy-seeds 100-119 --policy-models tiny-opt
"""

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from kvscope.run.environment import measured_environment

from .cases import BATCHING, FAULTS, OVERFLOW
from .conftest import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

Cases = dict[str, dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "served" in metafunc.fixturenames:
        models = metafunc.config.getoption("--policy-models").split(",")
        metafunc.parametrize("served", models, indirect=True, scope="module")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, require) -> Cases:
    """What came of serving the random workloads with this model under every policy."""
    import importlib.util

    require("vLLM", importlib.util.find_spec("vllm") is not None, "run `make env`")
    from kvscope.plan.grid import expand

    first, last = request.config.getoption("--policy-seeds").split("-")
    one = expand(None, [], ROOT / "config").experiments[0].experiment
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.equal_tokens", request.param, first, last],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | measured_environment(one),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {case["case"]: case for case in found}


every_combination = pytest.mark.parametrize(
    "case", [f"{batching} {overflow}" for batching in BATCHING for overflow in OVERFLOW]
)


@every_combination
def test_tokens_equal_those_of_a_run_that_never_overflows(served: Cases, case: str):
    assert sum(map(len, served[case]["preempted"])) >= 5, "too few preemptions to show anything"
    assert not any(served[case]["differing"])


@every_combination
def test_every_block_is_free_in_the_end(served: Cases, case: str):
    assert not any(served[case]["left"])


@every_combination
def test_what_the_policy_keeps_is_swapped(served: Cases, case: str):
    preemptions, swapped = sum(map(len, served[case]["preempted"])), sum(served[case]["swapped"])
    if "recompute" in case:
        assert swapped == 0
    elif "small-pool" in case:
        assert 0 < swapped < preemptions
    else:
        assert swapped == preemptions


def test_some_requests_are_preempted_several_times(served: Cases):
    for case in served.values():
        assert any(max(Counter(ids).values(), default=0) > 1 for ids in case["preempted"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_policy_that_forgets_to_copy_or_copies_late_gives_other_tokens(served: Cases, fault: str):
    assert any(served[fault]["differing"])
