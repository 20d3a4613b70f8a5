"""vLLM's own offloading gives the results of vLLM that is started by hand."""

from typing import Any

import pytest

from kvscope.report.check_run import check_run
from tests.engine.conftest import AMPLE, Runner
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

COUNTS = ("preemptions", "lost", "computed", "passes", "stored", "loaded")
PUBLISHED = {"native": (10, 2012, 668), "native_full": (10, 2012, 156)}
"""Preemptions, tokens lost, and recomputed of 12 requests in 40 blocks, by vLLM 0.32."""


def served(policy: str, seed: int, blocks: int, shared: int) -> Any:
    from plain_vllm import both

    return both(policy, seed, blocks, shared)


def compare(warm: Warm, policy: str, seed: int, blocks: int, shared: int) -> dict[str, Any]:
    ours, plain, modeled = warm.call(served, policy, seed, blocks, shared)
    assert {name: ours[name] for name in COUNTS} == {name: plain[name] for name in COUNTS}
    assert {name: modeled[name] for name in COUNTS} == {name: plain[name] for name in COUNTS}
    assert ours["outputs"] == plain["outputs"]
    return ours


@pytest.mark.representative
@pytest.mark.parametrize("policy", PUBLISHED)
def test_counts_are_those_of_vllm_started_by_hand(warm: Warm, policy: str):
    ours = compare(warm, policy, seed=1, blocks=40, shared=0)
    result = tuple(ours[name] for name in ("preemptions", "lost", "recomputed"))
    assert result == PUBLISHED[policy]


@pytest.mark.parametrize("policy", PUBLISHED)
def test_a_measured_run_with_stores_and_no_loads_holds(run: Runner, policy: str):
    made = run(AMPLE, f"overflow={policy}", "overflow.host_blocks=64")
    assert set(made.table("offload_jobs")["direction"]) == {"out"}
    assert check_run(made.directory) == []


@pytest.mark.parametrize("policy", PUBLISHED)
@pytest.mark.parametrize(("seed", "blocks", "shared"), [(2, 36, 0), (3, 44, 96), (4, 60, 300)])
def test_counts_of_other_requests(warm: Warm, policy: str, seed: int, blocks: int, shared: int):
    assert compare(warm, policy, seed, blocks, shared)["loaded"] > 0
