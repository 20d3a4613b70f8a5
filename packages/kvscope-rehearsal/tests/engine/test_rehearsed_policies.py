"""Every overflow policy with every batching policy on device=cuda, and several KV groups."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rehearsals import HOST_POOL, SMALL, Rehearsal

pytestmark = pytest.mark.engine

SWAP: dict[str, Any] = {"overflow": "swap"} | HOST_POOL
OVERFLOWS: dict[str, dict[str, Any]] = {
    "recompute": {"overflow": "recompute"},
    **{
        f"swap, {memory}, {copies}": SWAP
        | {"overflow.host_memory": memory, "overflow.copies": copies}
        for memory, copies in product(("pinned", "pageable"), ("per_block", "coalesced"))
    },
    "activation": {"overflow": "activation"} | HOST_POOL,
    "adaptive": {"overflow": "adaptive", "overflow.hardware": "h100"} | HOST_POOL,
    "native": {"overflow": "native"} | HOST_POOL,
    "native_full": {"overflow": "native_full"} | HOST_POOL,
}
BATCHINGS: dict[str, dict[str, Any]] = {
    "prefill_first": {"batching": "prefill_first"},
    "mixed": {"batching": "mixed"},
    "chunked": {"batching": "chunked", "batching.chunk_tokens": 8},
}


@pytest.fixture(scope="module")
def policies(tmp_path_factory, require, forked) -> Rehearsal:
    """A campaign of all policies."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("policies"), require)
    grids = [
        {"set": SMALL | batching | {"repeats": 1}, "linked": [*OVERFLOWS.values()]}
        for batching in BATCHINGS.values()
    ]
    rehearsal.add_study("policies", *grids)
    done = rehearsal.kvscope("run", "study=policies", "--multirun", "--tables")
    assert done.returncode == 0, done.stdout
    return rehearsal


def runs_of(rehearsal: Rehearsal, overflow: str) -> list[Path]:
    """The runs of an overflow policy."""
    results = [run for run in rehearsal.experiments if f"-{overflow}-b" in run.name]
    assert results
    return results


def test_every_run_is_valid(policies):
    assert len(policies.experiments) == len(OVERFLOWS) * len(BATCHINGS)
    policies.assert_valid()


def test_all_give_the_same_tokens_and_preempt(policies):
    first, *others = policies.experiments
    for run in others:
        assert policies.outputs(run) == policies.outputs(first), run.name
        assert len(policies.table(run, "preemptions")), run.name


@pytest.mark.parametrize(
    ("overflow", "table"),
    [("swap", "transfers"), ("native", "offload_jobs"), ("native_full", "offload_jobs")],
)
def test_what_is_kept_on_the_host_is_copied_by_the_clock_of_the_gpu(policies, overflow, table):
    for run in runs_of(policies, overflow):
        transfers = policies.table(run, table)
        assert set(transfers["direction"]) == {"in", "out"}, run.name
        assert set(transfers["clock"]) == {"device"}
