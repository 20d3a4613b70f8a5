"""Hits, evictions and shared blocks that are not what happened: each is noticed by its column."""

from collections.abc import Callable
from functools import partial

import pandas as pd
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from tests.warm import Warm

from .conftest import ROOT
from .forged_runs import Forgery, noticed, with_fact

pytestmark = pytest.mark.engine

BLOCK = 32
CONVERSATIONS = (
    *(
        "device=dry",
        "device.pass_s=0.001",
        "device.copy_s=0.0001",
        "cache.prefix_caching=true",
        "cache.blocks=11",
    ),
    *("cache.block_size=32", "cache.admission=vllm", "cache.watermark=0.0", "seed=1"),
    *("workload=conversation", "workload.turns=3", "workload.system_tokens=70"),
    *("workload.max_tokens=288", "workload.think_s=0.002", "engine.max_model_len=288"),
    *("engine.max_num_batched_tokens=320", "engine.max_num_seqs=8", "model.layers=2"),
    *("batching=chunked", "batching.chunk_tokens=40", "repeats=2", "profiler=none"),
    *("overflow=swap", "overflow.host_blocks=64"),
)
Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def conversations(warm: Warm) -> Records:
    (planned,) = expand(None, list(CONVERSATIONS), ROOT / "config").experiments
    directory = warm.directory / "conversations" / planned.experiment.id
    facts = warm.run(planned.experiment, directory)
    assert facts["status"] == "complete", (directory / "log.txt").read_text()[-3000:]
    assert check_run(directory, quick=True) == []
    return read_records(directory)


def changed(table: str, change: Change) -> Forgery:
    """A table with a change."""

    def forge(run: Records) -> Records:
        frame: pd.DataFrame = getattr(run, table)
        return run.variant(**{table: change(frame.reset_index(drop=True).copy())})

    return forge


def without(row: int, frame: pd.DataFrame) -> pd.DataFrame:
    """A table without one row."""
    return frame.drop(index=frame.index[row])


def again(frame: pd.DataFrame) -> pd.DataFrame:
    """A table with its first row once more, of another block."""
    more = frame.iloc[:1].assign(block=frame["block"].max() + 1)
    return pd.concat([frame, more], ignore_index=True)


def plus(column: str, by: float, which: str | None = None, row: int = 0) -> Change:
    """A table with one value changed, of the rows that a query selects."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        at = (frame if which is None else frame.query(which)).index[row]
        frame.loc[at, column] += by
        return frame

    return change


def replaced(column: str, value: str) -> Change:
    """A table whose first row has another value."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        assert frame.loc[0, column] != value
        frame.loc[0, column] = value
        return frame

    return change


def flipped(column: str, frame: pd.DataFrame) -> pd.DataFrame:
    frame.loc[0, column] = not frame.loc[0, column]
    return frame


def misses(run: Records) -> Records:
    """A request that computes the last block that it found, in all tables."""
    batch, steps = (frame.reset_index(drop=True).copy() for frame in (run.batch, run.steps))
    hits = run.hits.reset_index(drop=True)
    row = hits.query("block_position > 0").iloc[0]
    of_pass = (hits["repeat"] == row["repeat"]) & (hits["step"] == row["step"])
    own = hits[of_pass & (hits["request_id"] == row["request_id"])]
    last = own.loc[own["block_position"].idxmax()]
    at = batch.query(
        f"repeat == {row['repeat']} and step == {row['step']} "
        f"and request_id == '{row['request_id']}'"
    ).index[0]
    batch.loc[at, ["hit_tokens", "context_tokens"]] -= BLOCK
    batch.loc[at, "own_hit_tokens"] -= BLOCK * (last["owner"] == row["request_id"])
    batch.loc[at, "scheduled_tokens"] += BLOCK
    at = steps.query(f"repeat == {row['repeat']} and step == {row['step']}").index[0]
    steps.loc[at, ["scheduled_tokens", "prefill_tokens"]] += BLOCK
    return run.variant(batch=batch, steps=steps, hits=hits.drop(index=last.name))


def of_whole_blocks(run: Records) -> Records:
    """A swap that copies the blocks that others hold, too."""
    rows = run.transfers.reset_index(drop=True).copy()
    lost = run.preemptions.query("event == 'preempt' and shared_blocks > 0")
    of = ["repeat", "step", "request_id"]
    row = rows.reset_index().merge(lost[of].drop_duplicates(), on=of).query("direction == 'out'")
    at = row["index"].iloc[0]
    rows.loc[at, "bytes"] += rows.loc[at, "bytes"] // rows.loc[at, "blocks"]
    rows.loc[at, "blocks"] += 1
    return run.variant(transfers=rows)


FORGERIES: list[tuple[str, Forgery, str]] = [
    ("a hit is not recorded", changed("hits", partial(without, -1)), "hits.rows"),
    ("a hit more is recorded", changed("batch", plus("hit_tokens", 32, row=9)), "batch.hit_tokens"),
    (
        "another's tokens as own",
        changed("batch", plus("own_hit_tokens", 32)),
        "batch.own_hit_tokens",
    ),
    (
        "a block that others held was free",
        changed("hits", partial(flipped, "in_use")),
        "hits.in_use",
    ),
    ("an admission as a resumption", changed("hits", partial(flipped, "resumed")), "hits.resumed"),
    ("at another position", changed("hits", plus("block_position", 1, row=-1)), "hits.rows"),
    ("of another owner", changed("hits", replaced("owner", "5")), "hits.owner"),
    ("in another block", changed("hits", plus("block", 1)), "hits.block"),
    ("of another computation", changed("hits", plus("cached_step", 1)), "hits.cached_step"),
    ("after its eviction", changed("evictions", plus("step", -1, "hits > 0")), "evictions.rows"),
    ("a block that is there is missed", misses, "batch.hit_tokens"),
    (
        "an eviction is not recorded",
        changed("evictions", partial(without, 3)),
        "evictions.rows",
    ),
    ("an eviction twice", changed("evictions", again), "evictions.rows"),
    ("times hit", changed("evictions", plus("hits", 1)), "evictions.hits"),
    ("its age", changed("evictions", plus("age_s", 1e-3)), "evictions.age_s"),
    (
        "by nobody of the pass",
        changed("evictions", replaced("request_id", "15")),
        "evictions.request_id",
    ),
    ("evicted, of another owner", changed("evictions", replaced("owner", "20")), "evictions.rows"),
    (
        "blocks of a victim that others hold",
        changed("preemptions", plus("shared_blocks", 1, "event == 'preempt'")),
        "preemptions.shared_blocks",
    ),
    (
        "what a resumption finds",
        changed("preemptions", plus("hit_tokens", 32, "event == 'resume'")),
        "preemptions.hit_tokens",
    ),
    (
        "a shared block counts twice",
        changed("steps", plus("kv_blocks_used", 1, row=20)),
        "steps.kv_blocks_used",
    ),
    (
        "its tokens count twice",
        changed("steps", plus("kv_tokens_used", 32, row=20)),
        "steps.kv_tokens_used",
    ),
    ("shared blocks are copied", of_whole_blocks, "transfers.blocks"),
    (
        "tokens from nowhere",
        changed("batch", plus("context_tokens", 32, "hit_tokens > 0")),
        "batch.context_tokens",
    ),
    (
        "the prefix cache was not empty",
        lambda run: with_fact(run, "engine.prefix_cache.1.cached_blocks", lambda _: 3),
        "facts_differ",
    ),
    (
        "it was not emptied",
        lambda run: with_fact(run, "engine.prefix_cache", lambda each: each[:1]),
        "facts_differ",
    ),
]


@pytest.mark.parametrize(
    ("forge", "name"), [f[1:] for f in FORGERIES], ids=[f[0] for f in FORGERIES]
)
def test_a_forged_hit_or_eviction_is_noticed(conversations: Records, forge: Forgery, name: str):
    assert name in noticed(forge(conversations))
