"""The modeled device takes the seconds of docs/MODEL.md, which these tests compute themselves.

The hardware is one whose passes consist of launches and the host's work, so that their seconds are
a sum of a few numbers, and whose copies differ by direction. `test_modeled_cost.py` has
the arithmetic of passes.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.engine.devices.platform import platform_of
from kvscope.engine.devices.virtual.clock import VirtualClock
from kvscope.engine.marks import Marks
from kvscope.engine.recording import Recording
from kvscope.plan.grid import expand
from kvscope.run.recorder import RepeatContext, replay
from kvscope.run.serving import serve
from kvscope.workload.requests import build
from tests.engine.conftest import ROOT, Silent, last_of_each_key
from tests.warm import Warm

pytestmark = pytest.mark.engine

LAYERS, VOCABULARY, BLOCK, PIECES = 4, 1024, 16, 8  # K and V of each layer lie apart
LAUNCH_S, REQUEST_S, ENTRY_S, BETWEEN_S = 1e-3, 3e-4, 1e-7, 7e-4
ISSUE_S, QUEUE = 4e-6, 20
KV_BYTES = BLOCK * 2 * 256 * LAYERS * 4  # of a block: K and V of 256 elements of 4 bytes
ACTIVATION_BYTES = KV_BYTES // 2
COPY_S = {"pinned": 5e-6, "pageable": 8e-6}
RATE = {
    ("pinned", "out"): 2e9,
    ("pinned", "in"): 7e9,
    ("pageable", "out"): 4e8,
    ("pageable", "in"): 9e8,
}
HARDWARE: dict[str, float] = {
    **dict.fromkeys(("gemm_flops_per_s", "attention_flops_per_s"), 1e30),
    **dict.fromkeys(("memory_bytes_per_s", "l2_bytes_per_s", "weight_bytes_per_s"), 1e30),
    **{"layer_launch_s": LAUNCH_S, "request_s": REQUEST_S, "vocabulary_entry_s": ENTRY_S},
    **{"between_passes_s": BETWEEN_S, "copy_issue_s": ISSUE_S, "copy_queue": QUEUE},
    **{f"{memory}_copy_s": seconds for memory, seconds in COPY_S.items()},
    **{f"{memory}_{way}_bytes_per_s": rate for (memory, way), rate in RATE.items()},
}
WORDS = (
    *("device=modeled", "batching=prefill_first", "workload=uniform", "workload.num_requests=12"),
    *("workload.max_tokens=192", "engine.max_model_len=192", "engine.max_num_seqs=8"),
    *(f"cache.block_size={BLOCK}", "cache.blocks=24", "seed=5"),
)
POOL = "overflow.host_blocks=64"


def tables_of(words: list[str]) -> dict[str, pd.DataFrame]:
    """The tables of a modeled run in this process."""
    (planned,) = expand(None, words, ROOT / "config").experiments
    platform, recording = platform_of(planned.experiment), Recording()
    with TemporaryDirectory() as directory, platform.run_engine(Path(directory)) as engine:
        engine.begin(recording, Marks())
        served = serve(engine, build(planned.experiment), Silent())
        blocks = (engine.kv_blocks_total, engine.host_blocks_total)
        result = replay(recording, RepeatContext(0, served.origin_ns, *blocks, BLOCK, "modeled"))
    names = ("steps", "batch", "preemptions", "transfers")
    return {name: getattr(result, name) for name in names}


@pytest.fixture(scope="module")
def modeled(warm: Warm) -> Any:
    """`modeled(*overrides)`: the tables of a run on this hardware."""
    made: dict[Any, SimpleNamespace] = {}

    def run(*overrides: str, **hardware: float) -> SimpleNamespace:
        key = (overrides, *hardware.items())
        if key not in made:
            numbers = ", ".join(f"{name}: {n}" for name, n in (HARDWARE | hardware).items())
            words = last_of_each_key([*WORDS, f"device.constants={{{numbers}}}", *overrides])
            made[key] = SimpleNamespace(**warm.call(tables_of, words))
        return made[key]

    return run


def computed_s(steps: pd.DataFrame) -> pd.Series:
    """Time of each pass without its copies."""
    return LAYERS * LAUNCH_S + steps["requests"] * (REQUEST_S + VOCABULARY * ENTRY_S)


def copied_s(copies: int, moved_bytes: int, memory: str, way: str) -> float:
    """Time of equal copies, one after the other."""
    return copies * max(ISSUE_S, COPY_S[memory] + moved_bytes / copies / RATE[memory, way])


def moved_s(run: SimpleNamespace) -> pd.Series:
    """Time before each pass for copying and rebuilding."""
    rows = run.transfers[run.transfers["request_id"].notna()]
    spent = rows[["copy_s", "rebuild_s"]].astype(float).sum(axis=1).groupby(rows["step"]).sum()
    return spent.reindex(run.steps["step"], fill_value=0.0)


def near(seconds: Any) -> Any:
    return pytest.approx(np.asarray(seconds, float), rel=1e-6, abs=1e-8)


def test_a_pass_takes_its_launches_and_the_hosts_time_for_each_of_its_requests(modeled):
    steps = modeled("overflow=recompute").steps
    assert steps["requests"].nunique() > 3
    assert steps["forward_s"].to_numpy() == near(computed_s(steps))
    assert steps["duration_s"].to_numpy() == near(steps["forward_s"])


def test_the_hosts_loop_lies_between_two_passes(modeled):
    steps = modeled("overflow=recompute").steps
    ends = steps["start_s"] + steps["duration_s"]
    assert (steps["start_s"].iloc[1:].to_numpy() - ends.iloc[:-1].to_numpy()) == near(
        np.full(len(steps) - 1, BETWEEN_S)
    )


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_blocks_are_copied_at_the_rate_of_their_direction(modeled, memory: str):
    run = modeled("overflow=swap", POOL, f"overflow.host_memory={memory}")
    rows = run.transfers
    assert len(rows) >= 6
    for row in rows.itertuples():
        copies, moved = row.bytes // KV_BYTES * PIECES, row.bytes
        due_s = copied_s(copies, moved, memory, row.direction)
        assert row.copy_s == near(due_s)
        issued_s = max(copies * ISSUE_S, (copies - min(copies, QUEUE)) * due_s / copies)
        called_s = due_s if memory == "pageable" else issued_s
        assert row.end_s - row.start_s == near(called_s)
    forward_s = computed_s(run.steps).to_numpy() + moved_s(run).to_numpy()
    assert run.steps["forward_s"].to_numpy() == near(forward_s)


def test_fetched_activations_are_copied_in_and_rebuilt_layer_by_layer(modeled):
    made = modeled("overflow=activation", POOL)
    back = made.transfers.query("direction == 'in'")
    rows = back.merge(made.preemptions.query("event == 'resume'"), on=["step", "request_id"])
    assert len(rows) == len(back) > 0
    for row in rows.itertuples():
        blocks = -(-row.tokens // BLOCK)
        assert row.bytes == blocks * ACTIVATION_BYTES
        assert row.copy_s == near(copied_s(blocks, row.bytes, "pinned", "in"))
        assert row.rebuild_s == near(0.4 * LAYERS * LAUNCH_S)


def test_a_decoding_request_is_saved_in_one_copy_a_pass(modeled):
    made = modeled("overflow=activation", POOL)
    saves = made.transfers[made.transfers["request_id"].isna()]
    steps = made.steps.merge(saves, on="step", suffixes=("", "_of_copy"))
    decoding = steps[steps["phase"] == "decode"]
    assert len(decoding)
    for row in decoding.itertuples():
        moved = row.requests * ACTIVATION_BYTES // BLOCK
        assert row.bytes == moved
        assert row.copy_s == near(copied_s(row.requests, moved, "pinned", "out"))


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_saved_activations_occupy_the_link_during_the_next_passes(modeled, memory: str):
    """Copies wait for a busy link; the host waits for copies to pageable memory."""
    run = modeled(
        *("overflow=activation", POOL, f"overflow.host_memory={memory}"),
        pinned_out_bytes_per_s=1e6,  # a token takes most of a pass
    )
    own_s, moved = computed_s(run.steps).to_numpy(), moved_s(run).to_numpy()
    saved = run.transfers["request_id"].isna()
    starts = run.transfers[~saved].groupby("step")["start_s"].min()
    saves = run.transfers[saved].groupby("step")["copy_s"].sum()
    free_s, waited = 0.0, 0
    for row, computing_s, moving_s in zip(run.steps.itertuples(), own_s, moved, strict=True):
        begin_s = row.start_s
        if moving_s:
            begin_s = max(begin_s, free_s)
            assert starts[row.step] == near(begin_s)
        waited += begin_s > row.start_s + 1e-4
        end_s = begin_s + moving_s + computing_s
        if memory == "pageable":
            end_s += saves.get(row.step, 0.0)
        else:
            free_s = max(end_s, free_s) + saves.get(row.step, 0.0)
        assert row.start_s + row.forward_s == near(end_s)
    assert (waited > 0) == (memory == "pinned")


def swapped_behind_saves(way: str) -> tuple[int, int]:
    """Time at which a block ordered at 0 is copied, and the clock then, in nanoseconds.

    The link takes 5 ms for what was saved, the copy 1 ms.
    """
    from kvscope.engine.vllm.connectors.swap import SwapOrders
    from kvscope.engine.vllm.link import Link

    costs: Any = SimpleNamespace(
        copy_s=lambda host, way: (1e-3, 1e-4), block_bytes=KV_BYTES, pageable=False
    )
    link, orders = Link(VirtualClock(), costs), SwapOrders()
    link.copy(5e-3)
    getattr(orders, way).append(("request", (3,), (8,)))
    (result,) = orders.before_pass(link)
    assert result.start_ns is not None
    return result.start_ns, link.clock.now_ns()


@pytest.mark.parametrize("way", ["out", "into"])
def test_a_swapped_block_waits_for_saves_too(warm: Warm, way: str):
    """`adaptive` does so: it swaps some victims and keeps the activations of others."""
    assert warm.call(swapped_behind_saves, way) == (5_000_000, 6_000_000)


# ------------------------------------------------------------------------ the choice of `adaptive`

FAST = {f"pinned_{way}_bytes_per_s": 1e13 for way in ("in", "out")} | {"pinned_copy_s": 0.0}


def actions(run: SimpleNamespace) -> set[str]:
    return set(run.preemptions["policy"])


def test_adaptive_swaps_where_copies_are_cheap_and_there_is_room(modeled):
    """Rebuilding has 0.4 of the launches of a pass, copies have none."""
    free = {**FAST, "copy_issue_s": 1e-8}
    ample = modeled("overflow=adaptive", POOL, **free)
    assert actions(ample) == {"swap"}
    assert not ample.batch["saved_tokens"].any()
    back = ample.preemptions.query("event == 'resume'")
    assert back["predicted_s"].to_numpy() == near(back["cost_s"])
    tiny = modeled("overflow=adaptive", "overflow.host_blocks=1", **free)
    assert actions(tiny) == {"recompute"}
    assert not tiny.preemptions["refused"].any()


def test_adaptive_recomputes_where_copies_are_slow(modeled):
    slow = {"pinned_in_bytes_per_s": 1e6, "pinned_out_bytes_per_s": 1e6}
    run = modeled("overflow=adaptive", POOL, **slow)
    assert actions(run) == {"recompute"}
    assert not run.batch["saved_tokens"].any()


def test_adaptive_saves_the_requests_that_will_be_preempted_and_no_other(modeled):
    """vLLM's order of preemption is known when a request begins."""
    run = modeled("overflow=adaptive", POOL, pinned_copy_s=1e-4)  # of a block, K and V have eight
    assert actions(run) == {"activation"}
    lost = run.preemptions.query("event == 'preempt'")
    saved = run.batch[run.batch["saved_tokens"] > 0]
    assert set(saved["request_id"]) == set(lost["request_id"]) < set(run.batch["request_id"])


def test_adaptive_saves_nothing_where_the_host_waits_longer_than_rebuilding_spares(modeled):
    words = ("overflow=adaptive", POOL, "overflow.host_memory=pageable")
    slow = modeled(*words, pageable_copy_s=2e-3, copy_issue_s=2e-3)
    assert actions(slow) == {"recompute"}
    assert not slow.batch["saved_tokens"].any()


def test_adaptive_saves_nothing_where_nobody_is_preempted(modeled):
    run = modeled("overflow=adaptive", POOL, "cache.blocks=200")
    assert run.preemptions.empty
    assert not run.batch["saved_tokens"].any()


def test_adaptive_keeps_victims_that_would_be_recomputed_again_and_again(modeled):
    """By vLLM 0.4.2's rules, without a watermark, a victim may resume into the last block."""
    rules, slow = ("cache.admission=vllm-0.4.2", "cache.watermark=0"), {"pinned_copy_s": 1e-3}
    adaptive = modeled("overflow=adaptive", POOL, *rules, **slow)
    recompute = modeled("overflow=recompute", *rules, **slow)
    assert "activation" in actions(adaptive)
    assert 3 * len(adaptive.preemptions) < len(recompute.preemptions)
    # With a watermark nothing of this is to be feared, and recomputing is the cheapest.
    assert actions(
        modeled("overflow=adaptive", POOL, rules[0], "cache.watermark=0.05", **slow)
    ) == {"recompute"}
