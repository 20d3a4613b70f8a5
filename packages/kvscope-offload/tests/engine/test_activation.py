"""Records of `activation` and `adaptive`; their victims' outputs stay the same."""

import pytest

from tests.engine.conftest import AMPLE, SCARCE, Runner, kvscope
from tests.engine.test_overflow import ACTIVATION, tokens

pytestmark = pytest.mark.engine


def test_activations_cost_nothing_on_preemption_and_half_the_bytes_on_resumption(run: Runner):
    made = run(SCARCE, *ACTIVATION)
    events, engine = made.records.preemptions, made.facts["engine"]
    out, back = events[events["event"] == "preempt"], events[events["event"] == "resume"]
    assert len(out) == len(back) > 0
    assert (events["policy"] == "activation").all()
    assert made.records.swapped_out.empty
    copies = made.records.copied_back
    back = back.merge(copies, on=["repeat", "step", "request_id"])
    assert len(back) == len(copies) == len(out)
    assert engine["activation_block_bytes"] == engine["block_bytes"] / 2
    blocks = -(-back["tokens"] // engine["block_size"])
    assert (back["bytes"] == blocks * engine["activation_block_bytes"]).all()
    assert (back[["copy_s", "rebuild_s"]] > 0).all(axis=None)
    assert not back["recomputed_tokens"].any()


def test_each_pass_writes_the_activations_of_its_tokens_through(run: Runner):
    made = run(SCARCE, *ACTIVATION)
    steps, engine = made.records.steps, made.facts["engine"]
    token_bytes = engine["activation_block_bytes"] / engine["block_size"]
    saves = steps.merge(made.records.saved, on=["repeat", "step"])
    assert len(saves) == len(steps)
    assert (saves["bytes"] == saves["scheduled_tokens"] * token_bytes).all()
    assert (saves["copy_s"] > 0).all()
    assert (saves["copy_s"] < saves["forward_s"]).all()


def test_activations_without_room_are_recomputed_and_recorded_as_refused(run: Runner):
    case = (SCARCE, "overflow=activation", "overflow.host_blocks=9")
    victims = run(*case).records.preemptions.query("event == 'preempt'")
    assert set(victims["policy"]) == {"activation", "recompute"}
    assert (victims["refused"] == (victims["policy"] == "recompute")).all()
    assert tokens(run, *case).equals(tokens(run, AMPLE))


def test_activations_larger_than_k_and_v_are_refused_in_one_sentence():
    done = kvscope("plan", "overflow=activation", "model=tiny-gqa")
    assert done.returncode == 2
    assert "keeps 4,096 bytes a token of model=tiny-gqa, whose K and V have 2,048" in done.stderr


def test_shared_heads_are_rebuilt_too(run: Runner):
    shared = ("model=tiny-gqa", "model.kv_heads=4", "repeats=1")
    case = (SCARCE, *ACTIVATION, *shared)
    assert run(*case).records.requests["preemptions"].sum() > 0
    assert tokens(run, *case).equals(tokens(run, AMPLE, *shared))


def test_an_adaptive_victim_has_its_prediction_and_its_cost(run: Runner):
    made = run(SCARCE, "overflow=adaptive", "overflow.host_blocks=64")
    events = made.records.preemptions
    assert (events["predicted_s"] > 0).all()
    back = events[events["event"] == "resume"].set_index(["repeat", "request_id", "step"])
    kept = back[back["policy"] != "recompute"]
    assert len(kept)
    moves = made.records.moves[["copy_s", "rebuild_s"]]
    copied_s = moves.astype(float).sum(axis=1).sum()
    assert back["cost_s"].sum() >= copied_s * (1 - 1e-12)
    assert made.facts["engine"]["activation_blocks_total"] == 64
    assert made.facts["engine"]["host_blocks_total"] == 128


def test_with_few_k_and_v_heads_adaptive_keeps_no_activations(run: Runner):
    words = ("overflow=adaptive", "overflow.host_blocks=64", "model=tiny-gqa", "repeats=1")
    made = run(SCARCE, *words)
    assert made.facts["engine"]["activation_blocks_total"] == 0
    assert made.records.saved.empty
    assert "activation" not in set(made.records.preemptions["policy"])
