"""The oracles of modeled batches hold of modeled runs, and of none with other times."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest

from kvscope.judge.oracles import cache, whole_batches
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.oracles.workload import workload_differs
from kvscope.judge.records import Records, read_records
from kvscope.metrics.registry import metrics_by_name
from kvscope.tables.oracle import NONE
from kvscope.tables.verdict import HELD, VIOLATED
from tests.engine.conftest import directory_of
from tests.engine.forged_runs import Forgery, everything, found, moved, scaled, with_fact
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WORDS = (
    *("device=offload_modeled", "engine.attention=torch", "model=opt-6.7b", "workload=uniform"),
    *("workload.num_requests=9", "workload.min_tokens=10", "workload.max_tokens=40"),
    *("workload.arrival=poisson", "workload.rate_per_s=20", "engine.max_num_seqs=4"),
    *("engine.max_model_len=64", "cache.block_size=16", "cache.blocks=64"),
)


@pytest.fixture(scope="module")
def run(warm: Warm) -> Records:
    return read_records(directory_of(warm, [*WORDS], "offload"))


def test_a_modeled_run_takes_the_times_of_its_model(run: Records) -> None:
    assert found(run, VIOLATED) == set()
    assert "modeled_batch_wrong" in found(run, HELD)


@pytest.mark.parametrize(
    "forge",
    [
        everything(1.2),
        everything(0.999),
        scaled("steps", 1.01, "duration_s"),
        moved("steps", "schedule_s", 1e-3),
        moved("steps", "forward_s", -1e-3),
    ],
)
def test_other_times_are_not_those_of_the_model(forge: Forgery, run: Records) -> None:
    assert "modeled_batch_wrong" in found(forge(run), VIOLATED)


@pytest.mark.parametrize(
    "forge",
    [moved("steps", "context_bytes", 1), moved("steps", "context_bytes", 2**50)],
)
def test_bytes_are_those_of_whole_blocks_in_use(forge: Forgery, run: Records) -> None:
    assert "context_bytes_wrong" in found(run, HELD)
    assert "context_bytes_wrong" in found(forge(run), VIOLATED)


def test_bytes_of_a_large_cache_are_those_of_its_blocks(run: Records) -> None:
    """Terabytes, which 32 bits do not hold."""
    large = scaled("steps", 1000.0, "kv_blocks_used")(scaled("steps", 1000.0, "context_bytes")(run))
    large.steps = large.steps.astype({"kv_blocks_used": "int32", "context_bytes": "int64"})
    assert cache.context_bytes_wrong(RunTables(large)) == NONE


def test_the_peak_of_the_cache_is_that_of_its_bytes(run: Records) -> None:
    """Not those of as many blocks of K and V: the hybrid policy keeps activations and ids, too."""
    peak = metrics_by_name()["kv_bytes_peak"].of(run)
    assert peak == run.steps["context_bytes"].max()
    assert 0 < peak < run.steps["kv_blocks_used"].max() * run.block_bytes


def test_the_first_repeat_begins_after_the_warm_up(run: Records) -> None:
    later = with_fact(run, "clock.repeats.0.start_ns", lambda old: old + 10**6)
    assert "modeled_batch_wrong" in found(later, VIOLATED)


def places(value: Any, above: str) -> Iterator[str]:
    """Paths to the values of a fact, by their keys with dots."""
    if not isinstance(value, dict | list):
        yield above
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        yield from places(value[key], f"{above}.{key}")


def test_predictions_of_the_engine_follow_from_its_settings(run: Records) -> None:
    """Split, cost model, predicted passes and timeline: every value of them."""
    unnoticed = []
    for place in places(run.facts["engine"]["offload"], "engine.offload"):
        forged = with_fact(run, place, lambda old: f"{old}x" if isinstance(old, str) else old + 0.5)
        if not whole_batches.modeled_facts_wrong(RunTables(forged)):
            unnoticed.append(place)
    assert unnoticed == []
    removed = with_fact(run, "engine.offload", lambda _: {})
    assert "modeled_facts_wrong" in found(removed, VIOLATED)


def test_modeled_requests_have_the_tokens_of_a_model(run: Records) -> None:
    requests = run.requests.assign(output_sha256="0" * 64)
    assert "modeled_output_wrong" in found(run.variant(requests=requests), VIOLATED)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("arrival_s", lambda values: values * (1 + 1e-9)),
        ("output_tokens", lambda values: values + 1),
        ("prompt_token_ids", lambda values: [list(value)[::-1] for value in values]),
        ("request_id", lambda values: values[::-1].tolist()),
    ],
)
def test_requests_are_those_of_the_settings_and_the_seed(
    column: str, change: Callable[[pd.Series], Any], run: Records
) -> None:
    assert workload_differs(RunTables(run)) == NONE
    forged = run.variant(workload=run.workload.assign(**{column: change(run.workload[column])}))
    assert workload_differs(RunTables(forged))
