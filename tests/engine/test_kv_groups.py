"""Runs of models with several KV groups: records of each group, and forgeries of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pytest

from kvscope.judge.records import Records
from kvscope.tables.verdict import VIOLATED

from .conftest import Runner, kvscope
from .forged_runs import found, noticed

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

pytestmark = pytest.mark.engine

WINDOWS = ("model=tiny-interleaved", "tracing=none", "overflow=recompute", "batching=chunked")
LONG = (
    *("workload.min_tokens=200", "workload.max_tokens=300", "workload.prompt_to_output_ratio=0.5"),
    *("engine.max_model_len=320", "repeats=1"),
)
WINDOW, BLOCK = 128, 32  # tokens
SCARCE, AMPLE = "cache.blocks=75", "cache.blocks=400"
"""Blocks of 32 tokens, in six groups of a layer each: 200 tokens take 42 until windows let go."""
SWAP = ("overflow=swap", "overflow.host_blocks=150")


@pytest.fixture(scope="module")
def scarce(run: Runner) -> Records:
    return run(*WINDOWS, *LONG, SCARCE).records


@pytest.fixture(scope="module")
def crowded(run: Runner) -> Records:
    """A run with a fourth of the blocks that its requests need."""
    few = ("cache.oversubscription=4", "workload.prompt_to_output_ratio=2", "warmup=0")
    return run(*WINDOWS, *LONG, *few).records


def test_a_window_holds_less_than_all_tokens_and_groups_add_up(scarce: Records) -> None:
    groups, steps, lost = scarce.kv_groups, scarce.steps, scarce.preemptions
    limited = groups["window_tokens"].notna()
    assert limited.any()
    assert not limited.all()
    used = pd.DataFrame(steps["group_blocks_used"].tolist())
    assert (used.sum(axis=1) == steps["kv_blocks_used"]).all()
    assert (used[limited[limited].index].max(axis=1) <= used[limited[~limited].index[0]]).all()
    assert (used @ groups["useful_bytes"] == steps["kv_bytes_used"]).all()
    assert (lost["event"] == "preempt").any()


def test_tokens_equal_those_of_an_ample_cache_whatever_happens_to_victims(run: Runner) -> None:
    ample = run(*WINDOWS, *LONG, AMPLE).records.requests.set_index("request_id")
    swap = run(*WINDOWS, *LONG, SCARCE, *SWAP)
    assert not ample["preemptions"].any()
    assert swap.facts["engine"]["swap_checks"]["compared"] > 0
    for records in (swap.records, run(*WINDOWS, *LONG, SCARCE).records):
        assert (records.preemptions["event"] == "preempt").any()
        found = records.requests.set_index("request_id")
        assert found["output_sha256"].equals(ample["output_sha256"])


CASES = [
    ("tiny-window", 32, 22),
    pytest.param("tiny-chunked", 32, 46, marks=pytest.mark.exhaustive),
    pytest.param("tiny-shared", 32, 66, marks=pytest.mark.exhaustive),
    ("tiny-hybrid", 96, 13),
]
LATENT = ("tiny-mla", 16, 45)
OF_ONE_TABLE = [("tiny-gqa", 32, 22), ("tiny-llama", 32, 22), ("tiny-opt", 32, 22)]
"""Models, tokens of a block, and blocks that are too few for the requests of LONG."""


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "block_size", "blocks"), [*CASES, LATENT])
def test_tokens_of_each_family_equal_those_of_an_ample_cache(
    run: Runner, model: str, block_size: int, blocks: int
) -> None:
    equal_tokens(run, f"model={model}", f"cache.block_size={block_size}", blocks=blocks)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("model", "block_size", "blocks"), [*OF_ONE_TABLE, *CASES])
def test_tokens_of_a_cache_in_fp8_equal_those_of_an_ample_one(
    run: Runner, model: str, block_size: int, blocks: int
) -> None:
    own = (f"model={model}", f"cache.block_size={block_size}", "cache.dtype=fp8")
    equal_tokens(run, *own, blocks=blocks)


def equal_tokens(run: Runner, *words: str, blocks: int) -> None:
    """Requests get the same tokens with so many blocks, which lack, as with more than enough."""
    # vLLM does not cut prefills of latents into chunks: a pass has room for the longest.
    full = 2048 if "model=tiny-mla" in words else 512
    common = ("tracing=none", "batching=mixed", f"engine.max_num_batched_tokens={full}", *LONG)
    ample, short = (
        run(*words, "warmup=0", *common, f"cache.blocks={n}").records.requests
        for n in (400, blocks)
    )
    ample, short = (of.set_index("request_id") for of in (ample, short))
    assert short["preemptions"].any()
    assert short["output_sha256"].equals(ample["output_sha256"])


def test_a_victim_may_hold_blocks_that_its_next_pass_would_leave_behind(crowded: Records) -> None:
    # A pass computes such a prompt whole, and windows let go as the next one is scheduled.
    lost = crowded.preemptions[crowded.preemptions["event"] == "preempt"]
    beyond = lost["tokens"] > WINDOW + BLOCK
    assert (beyond & lost["group_blocks"].map(lambda blocks: len(set(blocks)) == 1)).any()


def test_an_oversubscribed_cache_has_a_part_of_the_blocks_that_windows_need(
    crowded: Records,
) -> None:
    cache = crowded.settings["cache"]
    other = crowded.settings | {"cache": cache | {"oversubscription": 3}}
    assert "settings_differ" in found(crowded.variant(settings=other), VIOLATED)


Change = Callable[[pd.DataFrame], pd.DataFrame]


def more(column: str, by: float = 1) -> Change:
    """A column of the first row that has a value is larger."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.copy()
        row: Any = frame[column].first_valid_index()
        frame.loc[row, column] += by
        return frame

    return change


def swapped(column: str) -> Change:
    """A table in which a block of the first group counts as one of the last, in the first row
    with a value."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        cells: list[Any] = frame[column].tolist()
        row = next(at for at, cell in enumerate(cells) if cell is not None)
        first, *rest, last = cells[row]
        cells[row] = [first - 1, *rest, last + 1]
        return frame.assign(**{column: pd.Series(cells, frame.index, dtype=object)})

    return change


def at_first(column: str, value: Any) -> Change:
    """Another value in a table's first row."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object}).copy()
        frame.loc[frame.index[0], column] = value
        return frame

    return change


def named(kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Every group with a window of this kind."""
    return frame.assign(kind=frame["kind"].where(frame["window_tokens"].isna(), kind))


@pytest.mark.parametrize(
    ("table", "change", "name"),
    [
        ("steps", swapped("group_blocks_used"), "steps.group_blocks_used"),
        ("preemptions", swapped("group_blocks"), "preemptions.group_blocks"),
        ("steps", at_first("group_blocks_used", [1]), "steps.group_blocks_used"),
        ("steps", at_first("group_blocks_used", None), "rows_wrong"),
        ("steps", more("kv_bytes_used"), "steps.kv_bytes_used"),
        ("preemptions", more("kv_bytes"), "preemptions.kv_bytes"),
        ("steps", more("kv_blocks_used"), "steps.kv_blocks_used"),
        ("preemptions", more("blocks"), "preemptions.blocks"),
        ("kv_groups", at_first("kv_group", 9), "groups_wrong"),
        ("kv_groups", more("layers"), "groups_wrong"),
        ("kv_groups", more("padded_bytes", -64), "groups_wrong"),
        ("kv_groups", more("useful_bytes", -64), "steps.kv_bytes_used"),
        ("kv_groups", more("block_bytes", 64), "groups_wrong"),
        ("kv_groups", more("window_tokens", 64), "steps.group_blocks_used"),
        ("kv_groups", more("block_tokens", 32), "steps.group_blocks_used"),
        ("kv_groups", at_first("window_tokens", None), "groups_wrong"),
        ("kv_groups", at_first("kind", "SlidingWindowMLA"), "groups_differ"),
        ("kv_groups", at_first("kind", "Mamba"), "groups_differ"),
        ("kv_groups", partial(named, "ChunkedLocalAttention"), "steps.group_blocks_used"),
        (
            "kv_groups",
            lambda frame: at_first("window_tokens", None)(named("ChunkedLocalAttention", frame)),
            "groups_wrong",
        ),
        ("kv_groups", lambda frame: named("FullAttention", frame), "groups_wrong"),
        ("kv_groups", lambda frame: frame.iloc[:-1], "steps.group_blocks_used"),
        ("kv_groups", lambda frame: frame.iloc[:0], "groups_differ"),
    ],
)  # fmt: skip
def test_a_forged_group_is_noticed(scarce: Records, table: str, change: Change, name: str) -> None:
    forged = scarce.variant(**{table: change(getattr(scarce, table))})
    assert name in noticed(forged)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (("cache.prefix_caching=true",), "cache.prefix_caching=true needs"),
        (("overflow=swap", "overflow.host_blocks=40", "model=tiny-hybrid"), "overflow=swap needs"),
    ],
)
def test_settings_that_need_other_groups_are_refused_when_planned(
    setting: tuple[str, ...], said: str
) -> None:
    given = {word.partition("=")[0] for word in setting}
    words = [word for word in WINDOWS if word.partition("=")[0] not in given]
    done = kvscope("plan", *words, *setting)
    assert done.returncode == 2
    assert said in done.stderr
    assert "KV group" in done.stderr
    assert "Traceback" not in done.stderr
