"""Records of overflow policies; requests that give up leave nothing behind."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.engine.marks import Marks
from kvscope.engine.recording import Recording
from kvscope.plan.experiment import load
from kvscope.run.recorder import RepeatContext, replay
from kvscope.workload.requests import build
from tests.warm import Warm

from .conftest import AMPLE, SCARCE, Runner, Silent, kvscope

pytestmark = pytest.mark.engine

SWAP = ("overflow=swap", "overflow.host_blocks=64")
KEY = ["repeat", "step", "request_id"]
ACTIVATION = ("overflow=activation", "overflow.host_blocks=64")
of_packages = pytest.mark.packages
either = pytest.mark.parametrize(
    "policy",
    [pytest.param(SWAP, id="swap"), pytest.param(ACTIVATION, id="activation", marks=of_packages)],
)


def tokens(run: Runner, *case: str) -> pd.Series:
    return run(*case).records.requests.query("repeat == 0").set_index("request_id")["output_sha256"]


def test_every_swap_is_timed_and_counted_in_bytes(run: Runner):
    made = run(SCARCE, *SWAP)
    events, block_bytes = made.records.preemptions, made.facts["engine"]["block_bytes"]
    out, back = events[events["event"] == "preempt"], events[events["event"] == "resume"]
    assert len(out) == len(back) > 0
    size, of = made.facts["engine"]["block_size"], ["repeat", "step", "request_id"]
    for events, copies in ((out, made.records.swapped_out), (back, made.records.copied_back)):
        rows = events.merge(copies, on=of)
        assert len(rows) == len(copies) == len(out)
        assert (rows["copy_s"] > 0).all()
        assert (rows["bytes"] == -(-rows["tokens"] // size) * block_bytes).all()
    assert (back["wait_s"] > 0).all()
    assert not back["recomputed_tokens"].any()


@either
def test_warm_up_finds_that_what_was_kept_came_back_as_it_was(run: Runner, policy):
    result = run(SCARCE, *policy).facts["engine"]
    assert result["swap_checks"]["compared"] > 0
    assert result["swap_checks"]["differing"] == 0
    assert result["reference_checks"]["compared"] == 0  # vLLM's own kernels


@either
def test_the_copies_are_within_the_passes_that_made_them(run: Runner, policy):
    records = run(SCARCE, *policy).records
    moves = records.moves
    copied = moves[["copy_s", "rebuild_s"]].astype(float).sum(axis=1)
    spent = copied.groupby([moves["repeat"], moves["step"]]).sum()
    durations = records.steps.set_index(["repeat", "step"])["forward_s"].reindex(spent.index)
    assert (spent < durations).all()


def test_the_host_pool_holds_what_is_swapped_out(run: Runner):
    records = run(SCARCE, *SWAP).records
    assert (records.steps["host_blocks_total"] == 64).all()
    size = run(SCARCE, *SWAP).facts["engine"]["block_size"]
    for number, events in records.preemptions.groupby("repeat"):
        steps = records.steps[records.steps["repeat"] == number].set_index("step")
        change = events["tokens"].floordiv(-size).mul(-1)  # blocks, rounded up
        change = change.where(events["event"] == "preempt", -change)
        held = change.groupby(events["step"]).sum().reindex(steps.index, fill_value=0).cumsum()
        assert (held == steps["host_blocks_used"]).all()


def test_a_pool_of_two_blocks_recomputes_whom_it_cannot_hold(run: Runner):
    case = (SCARCE, "overflow=swap", "overflow.host_blocks=2")
    records = run(*case).records
    victims = records.preemptions[records.preemptions["event"] == "preempt"]
    too_long = victims["tokens"] > 2 * 32
    assert (victims["policy"][too_long] == "recompute").all()
    assert tokens(run, *case).equals(tokens(run, AMPLE))


@pytest.mark.parametrize(
    ("size", "policy"),
    [
        (1, "swap"),
        pytest.param(2, "swap", marks=pytest.mark.representative),
        (16, "swap"),
        pytest.param(2, "activation", marks=of_packages),
    ],
)
def test_small_blocks_give_the_same_tokens(run: Runner, size: int, policy: str):
    blocks = f"cache.blocks={13 * 32 // size}"
    own = (f"cache.block_size={size}", "engine.attention=paged", "repeats=1")
    case = (blocks, f"overflow={policy}", f"overflow.host_blocks={64 * 32 // size}", *own)
    assert run(*case).records.requests["preemptions"].sum() > 0
    assert tokens(run, *case).equals(tokens(run, AMPLE))
    result = run(*case).facts["engine"]
    for checks in (result["reference_checks"], result["swap_checks"]):
        assert checks["compared"] > 0
        assert checks["differing"] == 0


def served_but_for_one(file: Path) -> dict[str, Any]:
    """Serve the requests, and abort the first that is swapped out as soon as it is."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine
    from kvscope.run.serving import serve

    experiment = load(file)
    with run_engine(platform_of(experiment)) as engine:
        recording, step = Recording(), engine.vllm.step
        aborted: list[str] = []
        engine.begin(recording, Marks())

        def aborting_step():
            outputs = step()
            if recording.preemptions and not aborted:
                assert recording.preemptions[0].action.needs_pool
                assert engine.host_blocks_used > 0
                aborted.append(recording.preemptions[0].request_id)
                engine.abort(aborted)
            return outputs

        engine.vllm.step = aborting_step
        outputs = serve(engine, build(experiment), Silent()).outputs
        left = engine.kv_blocks_used + engine.host_blocks_used
    context = RepeatContext(0, 0, 13, 64, experiment.cache.block_size, "measured")
    made = replay(recording, context)
    result = {"events": made.preemptions, "transfers": made.transfers}
    return {"aborted": aborted, "outputs": outputs, "left": left} | result


@either
def test_a_request_aborted_while_preempted_leaves_nothing_behind(run: Runner, warm: Warm, policy):
    made = run(SCARCE, *policy)
    result = warm.call(served_but_for_one, made.directory / "experiment.yaml")
    assert result["left"] == 0
    (gone,) = result["aborted"]
    events = result["events"]
    assert events["event"][events["request_id"] == gone].tolist() == ["preempt"]
    (name,) = set(events["policy"])
    assert f"overflow={name}" in policy
    copied = result["transfers"]["direction"] == "out"
    assert (copied & (result["transfers"]["kind"] == "kv")).any() == (name == "swap")
    others = {name: ids for name, ids in result["outputs"].items() if name != gone}
    assert len(others) == 7
    given = {name: sha256(np.asarray(ids, "<i4").tobytes()) for name, ids in others.items()}
    expected = tokens(run, AMPLE)
    assert all(given[name].hexdigest() == expected[name] for name in others)


# The last request below needs 93 passes: longer than this on any machine.
TIMEOUT_S = 0.05


def test_requests_that_give_up_leave_nothing_behind(run: Runner):
    made = run(SCARCE, *SWAP, f"workload.timeout_s={TIMEOUT_S}", "repeats=3")
    requests = made.records.requests
    assert requests["aborted"].any()
    assert (requests["finished_s"][requests["aborted"]] > TIMEOUT_S).all()
    assert made.facts["engine"]["leaked_blocks"] == []


def test_a_request_that_gave_up_before_its_first_token_has_no_first_token(run: Runner):
    requests = run(SCARCE, *SWAP, f"workload.timeout_s={TIMEOUT_S}", "repeats=3").records.requests
    empty = sha256(np.empty(0, dtype="<i4").tobytes()).hexdigest()
    without = requests[requests["output_tokens"] == 0]
    assert without["aborted"].all()
    assert (without["output_sha256"] == empty).all()
    assert without["first_token_s"].isna().all()


def test_a_swap_without_a_pool_says_what_it_needs():
    done = kvscope("plan", "overflow=swap", "overflow.host_gib=null")
    assert done.returncode == 2
    assert "exactly one of overflow.host_blocks (null) and overflow.host_gib (null)" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", "dry"])
def test_rows_of_a_batch_are_in_the_order_of_the_schedule(run: Runner, device: str):
    """Requests that go on come first, in the order of their admission; then those admitted now."""
    records = run(SCARCE, *SWAP, f"device={device}").records
    lost = set(records.preemptions.query("event == 'preempt'")[KEY].itertuples(index=False))
    for repeat, rows in records.batch.groupby("repeat", sort=False):
        running: list[str] = []
        for step, batch in rows.groupby("step", sort=False):
            here = list(batch["request_id"])
            stays = [one for one in running if (repeat, step, one) not in lost and one in here]
            assert here[: len(stays)] == stays
            running = here
