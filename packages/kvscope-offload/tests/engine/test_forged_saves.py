"""Activations that are saved otherwise than was ordered, or possible: each is noticed."""

from collections.abc import Callable

import pandas as pd
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.tables.copies import INPUTS, OUT
from tests.engine.conftest import directory_of, last_of_each_key
from tests.engine.forged_runs import Forgery, noticed
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WORDS = (
    *("device=modeled", "workload=uniform", "workload.num_requests=8", "workload.min_tokens=40"),
    *("workload.max_tokens=200", "workload.prompt_to_output_ratio=1", "engine.max_model_len=220"),
    *("engine.max_num_seqs=8", "cache.block_size=16", "cache.blocks=24", "cache.admission=vllm"),
    *("cache.watermark=0", "overflow=activation", "overflow.host_blocks=64", "repeats=1", "seed=2"),
)
Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def run(warm: Warm) -> Records:
    result = read_records(directory_of(warm, [*WORDS], "saves"))
    assert noticed(result) == set()
    return result


def save(change: Change, place: int = 7) -> Forgery:
    """Copies with a changed one among those that save activations, or without it."""

    def forge(run: Records) -> Records:
        rows = run.transfers
        saves = rows.index[(rows["direction"] == OUT) & (rows["kind"] == INPUTS)]
        changed = change(rows.loc[saves[[place]]].copy())
        return run.variant(transfers=pd.concat([rows.drop(saves[place]), changed]).sort_index())

    return forge


def saved_tokens(change: Callable[[int], int], place: int) -> Forgery:
    """The tokens that a row of `batch` saves, changed."""

    def forge(run: Records) -> Records:
        rows = run.batch.copy()
        at = rows.index[rows["saved_tokens"] > 0][place]
        rows.loc[at, "saved_tokens"] = change(rows.loc[at, "saved_tokens"])
        return run.variant(batch=rows)

    return forge


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "fewer bytes than were ordered": (
        save(lambda row: row.assign(bytes=row["bytes"] // 2)),
        "transfers.bytes",
    ),
    "no copy": (save(lambda row: row.iloc[:0]), "transfers.rows"),
    "a copy in no time": (save(lambda row: row.assign(copy_s=1e-15)), "saves_wrong"),
    "before its pass": (save(lambda row: row.assign(start_s=0.0)), "saves_wrong"),
    "long after its pass": (save(lambda row: row.assign(end_s=row["end_s"] + 1)), "saves_wrong"),
    "a request that is not saved": (saved_tokens(lambda _: 0, 3), "batch.saved_tokens"),
    "a request that is saved in part": (saved_tokens(lambda n: n - 1, 0), "batch.saved_tokens"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_activations_that_are_forged_are_noticed(name: str, run: Records) -> None:
    forge, what = FORGERIES[name]
    assert what in noticed(forge(run))


def test_activations_have_the_type_of_the_model_beside_k_and_v_of_eight_bits(warm: Warm) -> None:
    words = [*WORDS, "cache.dtype=fp8", "device.kernels=vllm", "engine.attention=vllm"]
    result = read_records(directory_of(warm, words, "saves, fp8"))
    assert noticed(result) == set()
    assert len(result.saved)
    engine = result.record.engine
    assert engine.input_block_bytes == 16 * 4 * 256 * 4  # tokens, layers, numbers of four bytes


def test_a_replay_agrees_on_blocks_that_a_host_has_no_room_for(warm: Warm) -> None:
    words = last_of_each_key([*WORDS, "overflow.host_blocks=8"])
    result = read_records(directory_of(warm, words, "saves, a small pool"))
    assert result.preemptions["refused"].any()
    assert noticed(result) == set()
