"""The oracles of vLLM's offloading hold of its runs, and each forged store or load is noticed."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.tables.copies import IN, OUT
from kvscope.tables.verdict import HELD, VIOLATED
from tests.engine.conftest import directory_of
from tests.engine.forged_runs import Forgery, found, noticed, scaled, with_frame
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ORACLES = {
    *("job_malformed", "job_time_wrong", "load_wait_wrong", "differs_from_replay"),
}
WORDS = (
    *("device=modeled", "workload=uniform", "workload.num_requests=10", "workload.min_tokens=100"),
    *("workload.max_tokens=400", "workload.prompt_to_output_ratio=1", "engine.max_model_len=420"),
    *("engine.max_num_seqs=8", "cache.block_size=16", "cache.blocks=50", "cache.admission=vllm"),
    *("cache.watermark=0", "repeats=2", "seed=3"),
)
CASES = {
    "native": ("overflow=native", "batching=mixed"),
    "native_full": ("overflow=native_full", "batching=prefill_first"),
    "a full host": ("overflow=native_full", "batching=mixed"),
    "a slow link": (
        *("overflow=native_full", "batching=chunked", "batching.chunk_tokens=64"),
        "device.constants={pinned_in_bytes_per_s: 2.0e+8, pinned_out_bytes_per_s: 2.0e+8}",
    ),
    "a prefix cache": (
        *("overflow=native_full", "batching=chunked", "batching.chunk_tokens=64"),
        "cache.prefix_caching=true",
    ),
    "a host that copies": ("overflow=native_full", "batching=mixed", "device.hardware=cpu"),
}

Change = Callable[[pd.DataFrame], pd.DataFrame]


def with_jobs(run: Records, jobs: pd.DataFrame) -> Records:
    return with_frame(run, "offload_jobs", jobs)


@pytest.fixture(scope="module")
def runs(warm: Warm) -> dict[str, Records]:
    host = "overflow.host_blocks={}"
    words = {
        name: [*WORDS, host.format(20 if name == "a full host" else 400), *case]
        for name, case in CASES.items()
    }
    return {name: read_records(directory_of(warm, case, "native")) for name, case in words.items()}


@pytest.mark.parametrize("name", CASES)
def test_runs_of_native_hold(name: str, runs: dict[str, Records]) -> None:
    run = runs[name]
    assert found(run, VIOLATED) == set()
    assert found(run, HELD) >= ORACLES | {"modeled_time_wrong"}
    assert len(run.loaded)
    assert len(run.stored)


def of(direction: str, change: Change, place: int = 2) -> Forgery:
    """Jobs with a changed row of a direction; rows that `change` omits are removed."""

    def forge(run: Records) -> Records:
        rows = run.jobs
        chosen = rows.index[rows["direction"] == direction][[place]]
        changed = change(rows.loc[chosen].copy())
        return with_jobs(run, pd.concat([rows.drop(chosen), changed]).sort_index())

    return forge


def with_(**columns: Any) -> Change:
    return lambda row: row.assign(**columns)


def of_batch(column: str, by: int) -> Forgery:
    """The first row of `batch` that begins with loaded tokens, with more or fewer of them."""

    def forge(run: Records) -> Records:
        rows = run.batch.copy()
        row = rows.index[rows["loaded_tokens"].astype(float) > 0][0]
        rows.loc[row, column] += by
        return run.variant(batch=rows)

    return forge


def of_awaited(change: Change) -> Forgery:
    """The first store that a pass waited for, changed."""

    def forge(run: Records) -> Records:
        rows = run.jobs.copy()
        chosen = rows.index[rows["awaited_step"].notna()][:1]
        rows.loc[chosen] = change(rows.loc[chosen])
        return with_jobs(run, rows)

    return forge


def a_load_that_is_no_job(run: Records) -> Records:
    """A load that is a copy which its pass waits for."""
    copies = run.copies[run.copies["direction"] == IN].iloc[[2]]
    return of(IN, lambda row: row.iloc[:0])(run).variant(transfers=copies)


def another(row: pd.DataFrame) -> pd.DataFrame:
    """The row, and the same again under a later number."""
    return pd.concat([row, row.assign(job=row["job"] + 10_000)], ignore_index=True)


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "a load from the block before": (
        of(IN, lambda r: r.assign(first_block=r["first_block"] - 1)),
        "decisions",
    ),
    "a store that a pass waits for": (
        of(OUT, lambda r: r.assign(awaited_step=r["step"] + 3), place=5),
        "offload_jobs.awaited_step",
    ),
    "a wait for a store is left out": (
        of_awaited(with_(awaited_step=math.nan)),
        "offload_jobs.awaited_step",
    ),
    "a later pass waits for a store": (
        of_awaited(lambda r: r.assign(awaited_step=r["awaited_step"] + 1)),
        "offload_jobs.awaited_step",
    ),
    "a load is left out": (of(IN, lambda row: row.iloc[:0]), "batch.loaded_tokens"),
    "a load of another request": (of(IN, with_(request_id="0")), "batch.loaded_tokens"),
    "a load of more blocks": (of(IN, lambda r: r.assign(blocks=r["blocks"] + 1)), "decisions"),
    "a load twice": (of(IN, another), "decisions"),
    "a load from a later block": (
        of(IN, lambda r: r.assign(first_block=r["first_block"] + 1)),
        "decisions",
    ),
    "a load before its preemption": (of(IN, with_(step=0)), "decisions"),
    "a load of fewer bytes": (
        of(IN, lambda r: r.assign(bytes=r["bytes"] // 2)),
        "offload_jobs.bytes",
    ),
    "a load that counts as loaded": (of(IN, with_(loaded_blocks=1)), "job_malformed"),
    "a load that is no job": (a_load_that_is_no_job, "transfers.rows"),
    "a load that is learned of after its request runs": (
        of(IN, lambda r: r.assign(arrived_step=r["arrived_step"] + 1)),
        "decisions",
    ),
    "a load that is learned of as it is ordered": (
        of(IN, lambda r: r.assign(arrived_step=r["step"])),
        "decisions",
    ),
    "a load in no time": (of(IN, with_(copy_s=0.0)), "job_time_wrong"),
    "a load that ends late": (
        of(IN, lambda r: r.assign(end_s=r["end_s"] + 0.5)),
        "job_time_wrong",
    ),
    "tokens are loaded by nothing": (of_batch("loaded_tokens", 16), "batch.loaded_tokens"),
    "fewer tokens are loaded": (of_batch("loaded_tokens", -16), "batch.loaded_tokens"),
    "a store is left out": (of(OUT, lambda row: row.iloc[:0]), "decisions"),
    "a store of more blocks": (
        of(OUT, lambda r: r.assign(blocks=r["blocks"] + 1)),
        "decisions",
    ),
    "a store of what was not computed": (
        of(OUT, lambda r: r.assign(first_block=r["first_block"] + 20)),
        "decisions",
    ),
    "a store of more loaded blocks than it has": (
        of(OUT, lambda r: r.assign(loaded_blocks=r["blocks"] + 1)),
        "offload_jobs.loaded_blocks",
    ),
    "no store was loaded": (
        lambda run: with_jobs(
            run,
            run.jobs.assign(
                loaded_blocks=run.jobs["loaded_blocks"].where(run.jobs["loaded_blocks"].isna(), 0)
            ),
        ),
        "offload_jobs.loaded_blocks",
    ),
    "no store at all": (
        lambda run: with_jobs(run, run.loaded),
        "decisions",
    ),
    "a store before it was ordered": (
        of(OUT, lambda r: r.assign(start_s=r["ordered_s"] - 1e-3), place=20),
        "job_time_wrong",
    ),
    "a store awaited before it was ordered": (
        of(OUT, lambda r: r.assign(awaited_step=r["step"] - 1), place=5),
        "job_malformed",
    ),
    "a wait for no job": (
        lambda run: run.variant(steps=run.steps.assign(load_wait_s=(run.steps["step"] == 1) * 1.0)),
        "load_wait_wrong",
    ),
    "copies at another speed": (
        scaled("offload_jobs", 1.01, "copy_s", "end_s"),
        "modeled_time_wrong",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("case", ["native_full", "a prefix cache"])
def test_forgeries_are_noticed(name: str, case: str, runs: dict[str, Records]) -> None:
    forge, what = FORGERIES[name]
    assert what in noticed(forge(runs[case]))


def test_native_stores_no_outputs(runs: dict[str, Records]) -> None:
    run = runs["native"]
    rows = run.stored.merge(run.requests[["repeat", "request_id", "prompt_tokens"]])
    ends = (rows["first_block"] + rows["blocks"]) * run.block_size
    assert (ends <= rows["prompt_tokens"]).all()
    last = rows.index[0]
    more = run.jobs.copy()
    row = more.index[more["job"] == rows.loc[last, "job"]][0]
    more.loc[row, "first_block"] = rows.loc[last, "prompt_tokens"] // run.block_size
    assert "decisions" in noticed(with_jobs(run, more))
