"""Accounts of tokens: every computed token has one cause, and changed records change the causes."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from prompts import Prompt, accounts, causes, serve, serve_prompts

from kvscope.judge.records import Records
from kvscope_explain import tokens
from kvscope_explain.token_words import facts, lines
from tests.warm import Warm

pytestmark = pytest.mark.engine

ON = "cache.prefix_caching=true"
OFF = "cache.prefix_caching=false"
ONE_AT_A_TIME = "engine.max_num_seqs=1"
UNIFORM = ("workload=uniform", "workload.min_tokens=16", "workload.max_tokens=120")
ZIPF = ("workload=zipf", "workload.min_tokens=16", "workload.max_tokens=250")
CONVERSATION = (
    *("workload=conversation", "workload.num_conversations=8", "workload.max_tokens=280"),
    "workload.think_s=0.02",
)
AGENTS = (
    *("workload=agents", "workload.block_tokens=1", "workload.max_tokens=280"),
    "workload.time_scale=0.001",
)
SWAP = ("overflow=swap", "overflow.host_blocks=64")
ACTIVATION = ("overflow=activation", "overflow.host_blocks=64")
CHUNKED = ("batching=chunked", "batching.chunk_tokens=48")
CASES = {
    "uniform, recompute": (*UNIFORM, *CHUNKED),
    "uniform, no prefix cache": (*UNIFORM, OFF),
    "zipf, swap": (*ZIPF, *SWAP, *CHUNKED),
    "zipf, activation": (*ZIPF, *ACTIVATION, "batching=prefill_first"),
    "conversation, recompute": (*CONVERSATION, "batching=prefill_first"),
    "conversation, swap, no prefix cache": (*CONVERSATION, *SWAP, OFF),
    "conversation, one at a time": (*CONVERSATION, ONE_AT_A_TIME),
    "agents, recompute": (*AGENTS, *CHUNKED),
    "agents, no prefix cache, one at a time": (*AGENTS, OFF, ONE_AT_A_TIME),
    "agents, one at a time": (*AGENTS, ONE_AT_A_TIME),
}


@pytest.fixture(scope="module")
def runs(warm: Warm) -> dict[str, Records]:
    return {name: serve(warm, *words) for name, words in CASES.items()}


@pytest.fixture(params=CASES)
def run(request: pytest.FixtureRequest, runs: dict[str, Records]) -> Records:
    return runs[request.param]


def test_causes_add_up_to_the_tokens_that_passes_computed(run: Records) -> None:
    known, batch = accounts(run), run.of_repeat(0).batch
    computed = batch.groupby("request_id")["scheduled_tokens"].sum().to_dict()
    assert {name: account.tokens for name, account in known.of_request.items()} == computed
    assert all(count >= 0 for a in known.of_request.values() for count in a.computed.values())


def test_found_loaded_copied_and_computed_tokens_add_up_to_those_asked_for(run: Records) -> None:
    batch = run.of_repeat(0).batch
    hits = batch.groupby("request_id")["hit_tokens"].sum().to_dict()
    for name, account in accounts(run).of_request.items():
        missed = account.tokens - account.computed[tokens.OUTPUT]
        had = account.found + account.loaded + account.copied
        assert account.asked == had + missed + account.unserved
        assert account.found == hits[name]


def test_a_request_alone_asks_for_its_prompt(run: Records) -> None:
    requests = run.of_repeat(0).requests
    for name, prompt, lost in requests[["request_id", "prompt_tokens", "preemptions"]].to_numpy():
        account = accounts(run).of(name)
        assert account.asked == prompt or lost


def test_evicted_blocks_were_used_less_recently_than_the_pool_is_large(run: Records) -> None:
    known = accounts(run)
    for eviction in known.of(None).evicted:
        assert eviction.distance_blocks + (eviction.held_blocks or 0) >= known.pool_blocks
        assert (eviction.held_blocks is None) == (eviction.distance_blocks >= known.pool_blocks)


def test_evictions_have_all_evicted_tokens(run: Records) -> None:
    for account in accounts(run).of_request.values():
        assert account.evicted.total() == account.computed[tokens.EVICTED]


def test_shares_add_up_to_the_whole(run: Records) -> None:
    known = accounts(run)
    for name in [None, *known.of_request]:
        shares = [line.split()[0] for line in lines(known, name) if line.startswith("  ")]
        assert sum(float(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=0.3)
        made = facts(known, name)
        assert sum(made["computed"].values()) == known.of(name).tokens


ALONE = [name for name, words in CASES.items() if ONE_AT_A_TIME in words]


@pytest.mark.parametrize("case", ALONE)
def test_requests_that_run_alone_have_the_causes_of_a_plain_comparison(
    case: str, runs: dict[str, Records]
) -> None:
    run, known, size = runs[case].of_repeat(0), accounts(runs[case]), 16
    workload, batch = run.workload.to_dict("records"), run.batch.sort_values("step")
    texts = {row["request_id"]: sequence(row) for row in workload}
    prompts = dict(zip(run.workload["request_id"], run.workload["prompt_tokens"], strict=True))
    computed = set[bytes]()
    columns = ("request_id", "context_tokens", "hit_tokens", "scheduled_tokens")
    for name, context, hit, scheduled in zip(*(batch[column] for column in columns), strict=True):
        text, prompt = texts[name], prompts[name]
        if not context or context == hit:
            expected, before = Counter[str](), frozenset(computed)
        for place in range(context, context + scheduled):
            block_end = (place // size + 1) * size
            whole = block_end <= prompt and text[:block_end].tobytes() in before
            if place >= prompt:
                expected["output"] += 1
            elif whole:
                expected["known"] += 1
            else:
                short = text[: place + 1].tobytes() in before
                expected["short" if short else "new"] += 1
            computed.add(text[: place + 1].tobytes())
        for place in range(context):
            computed.add(text[: place + 1].tobytes())
        account = known.of(name).computed
        if context + scheduled == len(text) - 1:
            blocks = (tokens.EVICTED, tokens.BEHIND, tokens.LAST, tokens.OFF)
            assert account[tokens.NEW] == expected["new"]
            assert account[tokens.SHORT] == expected["short"]
            assert sum(account[cause] for cause in blocks) == expected["known"]


def sequence(row: Any) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The tokens of a prompt and its outputs."""
    parts = [row["prompt_token_ids"], row["output_token_ids"]]
    return np.concatenate([np.asarray(part, np.int64) for part in parts])


# ------------------------------------------------------------------ a loop


def loop(warm: Warm, tmp_path: pytest.TempPathFactory, *words: str) -> Records:
    """Six prompts, asked for in turn in three laps, of 50 blocks together, as in LMCache#970."""
    lengths = [96, 144, 160, 128, 112, 160]
    prompts = [
        Prompt(4 * (6 * lap + number), [*range(1000 * number, 1000 * number + length)])
        for lap in range(3)
        for number, length in enumerate(lengths)
    ]
    file = tmp_path.mktemp("loop") / "loop.jsonl"
    return serve_prompts(warm, file, prompts, *words)


def test_loop_larger_than_the_pool_is_never_found_and_a_larger_cache_ends_that(
    warm: Warm, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = loop(warm, tmp_path_factory)
    known = accounts(run)
    total = known.of(None)
    assert total.found == 0
    assert total.computed[tokens.EVICTED] == 2 * 800
    for number, length in enumerate([96, 144, 160, 128, 112, 160]):
        (eviction,) = known.of(str(6 + number)).evicted
        assert eviction.distance_blocks == 50 - length // 16
    largest = max(eviction.distance_blocks for eviction in total.evicted)
    enough = f"cache.blocks={largest + 12}"
    again = accounts(loop(warm, tmp_path_factory, enough)).of(None)
    assert again.computed[tokens.EVICTED] == 0
    assert again.found + again.computed[tokens.LAST] == 2 * 800


# ------------------------------------------------------------------ forged causes


@pytest.fixture(scope="module")
def forged(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Two prompts, the first again, and a prompt that shares its start."""
    first, second = [*range(1000, 1120)], [*range(2000, 2120)]
    prompts = [
        Prompt(0, first),
        Prompt(4, second),
        Prompt(8, first),
        Prompt(12, first[:70] + second[:20]),
    ]
    file = tmp_path_factory.mktemp("forged") / "prompts.jsonl"
    return serve_prompts(warm, file, prompts)


def with_tokens(run: Records, request: int, change: dict[int, int]) -> Records:
    """The run with other tokens at some places of a prompt."""
    rows = run.workload.to_dict("records")
    prompt = rows[request]["prompt_token_ids"] = np.array(rows[request]["prompt_token_ids"])
    for place, token in change.items():
        prompt[place] = token
    return run.variant(workload=pd.DataFrame(rows))


@pytest.mark.parametrize("place", [0, 15, 16, 50, 100, 111, 112, 119])
def test_other_token_is_new_from_its_place_on(place: int, forged: Records) -> None:
    """A pass computes what it computed, so that its tokens begin where they were not found."""
    assert causes(forged, 2) == {tokens.SHORT: 8}
    changed = accounts(with_tokens(forged, 2, {place: 7})).of("2")
    assert changed.found == min(place // 16, 7) * 16
    short = changed.computed[tokens.SHORT]
    assert changed.tokens == 8
    assert short == max(0, min(place - changed.found, 8))


def test_requests_that_come_in_another_order_exchange_their_causes(forged: Records) -> None:
    workload = forged.workload.copy()
    ids = workload["request_id"]
    prompts = workload.set_index(ids)["prompt_token_ids"]
    workload["prompt_token_ids"] = [prompts[name] for name in ("0", "0", "1", "3")]
    changed = forged.variant(workload=workload)
    assert causes(forged, 1) == {tokens.NEW: 120}
    assert accounts(changed).of("1").found == 112
    assert tokens.NEW not in causes(changed, 1)
    assert accounts(changed).of("2").computed[tokens.NEW] == 8


def test_hit_that_was_moved_contradicts_the_decisions(forged: Records) -> None:
    batch = forged.batch.copy()
    rows = batch.index[batch["hit_tokens"] > 0]
    assert len(rows) == 2
    batch.loc[rows[0], "hit_tokens"] -= 16
    batch.loc[rows[1], "hit_tokens"] += 16
    changed = accounts(forged.variant(batch=batch))
    for request in ("2", "3"):
        assert any("contradict" in line for line in lines(changed, request))
        assert not any("contradict" in line for line in lines(accounts(forged), request))


@pytest.mark.parametrize("blocks", [8, 12, 14])
def test_smaller_cache_evicts_what_the_larger_has(blocks: int, forged: Records) -> None:
    facts_ = forged.facts | {"engine": forged.facts["engine"] | {"kv_blocks_total": blocks}}
    account = accounts(forged.variant(facts=facts_)).of("2")
    assert account.found < 112
    assert account.evicted
