"""`device=dry`: vLLM's decisions, constant times, and an oracle that notices others."""

import numpy as np
import pytest

from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import Records, read_records
from kvscope.tables.verdict import HELD, VIOLATED
from tests.warm import Warm

from .cases import marked, that_run_here
from .conftest import directory_of
from .forged_runs import Forgery, everything, found, moved, scaled

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SMALL = (
    *("workload=uniform", "workload.min_tokens=16", "workload.max_tokens=120"),
    *("workload.num_requests=10", "engine.max_model_len=128", "engine.max_num_batched_tokens=256"),
    *("engine.max_num_seqs=8", "cache.block_size=16", "cache.blocks=14", "repeats=2", "seed=4"),
)
DRY = ("device=dry", "device.pass_s=0.02", "device.copy_s=0.003")
SWAP = ("overflow=swap", "overflow.host_blocks=64")
CASES = {
    "recompute, mixed": ("batching=mixed",),
    "swap, chunked": (*SWAP, "batching=chunked", "batching.chunk_tokens=48"),
    "swap, prefill first": (*SWAP, "batching=prefill_first"),
    "activation": ("overflow=activation", "overflow.host_blocks=40"),
    "native": ("overflow=native", "overflow.host_blocks=40", "workload.num_requests=6"),
    "arrivals": (*SWAP, "workload.arrival=poisson", "workload.rate_per_s=8"),
    "pauses": (*SWAP, "workload.arrival=poisson", "workload.rate_per_s=0.5"),
    "conversations": (
        *("workload=conversation", "workload.num_conversations=5", "workload.max_tokens=120"),
        *("cache.prefix_caching=true", *SWAP),
    ),
}


def words(device: tuple[str, ...], case: str) -> list[str]:
    """The settings; of several of one key the last holds, and no key of another workload."""
    small = [w for w in SMALL if "conversation" not in " ".join(CASES[case]) or "load" not in w]
    last = {word.partition("=")[0]: word for word in (*device, *small, *CASES[case])}
    return [*last.values()]


@pytest.fixture(scope="module")
def runs(warm: Warm) -> dict[str, Records]:
    return {
        name: read_records(directory_of(warm, words(DRY, name), "dry").absolute())
        for name in that_run_here(CASES)
    }


@pytest.mark.parametrize("name", marked(CASES))
def test_a_dry_run_is_valid(name: str, runs: dict[str, Records]) -> None:
    assert found(runs[name], VIOLATED) == set()
    assert "dry_time_wrong" in found(runs[name], HELD)
    assert len(runs[name].preemptions) or name in ("pauses", "conversations")


def test_a_pass_of_an_idle_engine_begins_when_a_request_arrives(runs: dict[str, Records]) -> None:
    steps, requests = runs["pauses"].of_repeat(0).steps, runs["pauses"].of_repeat(0).requests
    ends_s = (steps["start_s"] + steps["duration_s"]).shift(fill_value=0.0)
    begins_s = steps.loc[steps["start_s"] > ends_s + 1e-6, "start_s"]
    assert len(begins_s) > 3
    assert all(np.isclose(requests["arrival_s"], time_s).any() for time_s in begins_s)


def test_each_pass_takes_the_same_time_and_its_copies(runs: dict[str, Records]) -> None:
    steps, copies = runs["swap, chunked"].steps, runs["swap, chunked"].transfers
    blocks = copies.groupby(["repeat", "step"])["blocks"].sum()
    of_pass = steps.set_index(["repeat", "step"]).index.map(blocks.to_dict()).fillna(0)
    assert of_pass.max() > 0
    np.testing.assert_allclose(steps["duration_s"], 0.02 + 0.003 * of_pass.to_numpy(float))


@pytest.mark.parametrize("name", marked(["activation", "native", "arrivals"]))
@pytest.mark.parametrize("factor", [1.2, 0.999])
def test_other_times_are_noticed(name: str, factor: float, runs: dict[str, Records]) -> None:
    assert "dry_time_wrong" in found(everything(factor)(runs[name]), VIOLATED)


@pytest.mark.parametrize(
    "forge",
    [
        scaled("steps", 1.001, "duration_s", "forward_s"),
        moved("steps", "schedule_s", 1e-3),
        moved("steps", "start_s", 1e-4),
        scaled("transfers", 0.5, "copy_s"),
        scaled("transfers", 1.01, "end_s"),
    ],
)
def test_one_kind_of_other_times_is_noticed(forge: Forgery, runs: dict[str, Records]) -> None:
    assert "dry_time_wrong" in found(forge(runs["swap, chunked"]), VIOLATED)


@pytest.mark.packages
def test_a_copy_of_no_request_is_named_by_its_pass(runs: dict[str, Records]) -> None:
    forged = scaled("transfers", 2.0, "copy_s")(runs["activation"])
    (words,) = [
        verdict.first for verdict in judge_tables(forged) if verdict.name == "dry_time_wrong"
    ]
    assert words.split(": ")[1].startswith("copy_s is")
    assert words.startswith("repeat 0, step ")
    assert "request" not in words


def test_the_tokens_are_those_of_no_model(runs: dict[str, Records]) -> None:
    run = runs["swap, chunked"]
    requests = run.requests.assign(output_sha256="0" * 64)
    assert "modeled_output_wrong" in found(run.variant(requests=requests), VIOLATED)


def test_the_first_repeat_begins_with_the_clock(runs: dict[str, Records]) -> None:
    run = runs["swap, chunked"]
    first, *others = run.facts["clock"]["repeats"]
    clock = run.facts["clock"] | {"repeats": [first | {"start_ns": 10**9}, *others]}
    assert "dry_time_wrong" in found(run.variant(facts=run.facts | {"clock": clock}), VIOLATED)
