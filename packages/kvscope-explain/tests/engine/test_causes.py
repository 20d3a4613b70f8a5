"""The smallest runs that have each cause of a computed token.

Where a public question about a cache without hits has the cause, its number is there;
`test_recorded_causes` has those about servers.
"""

from pathlib import Path
from typing import Protocol

import pytest
from prompts import Prompt, accounts, causes, serve_prompts

from kvscope.judge.records import Records
from kvscope_explain import tokens
from kvscope_explain.token_words import lines
from kvscope_explain.tokens import Eviction
from tests.warm import Warm

pytestmark = pytest.mark.engine

OFF = "cache.prefix_caching=false"


def texts(first: int, count: int) -> list[int]:
    """Tokens that no other text has, for other first numbers."""
    return [*range(1000 * first, 1000 * first + count)]


class Serve(Protocol):
    """The run of prompts with settings."""

    def __call__(self, prompts: list[Prompt], *words: str) -> Records: ...


@pytest.fixture
def serve(warm: Warm, tmp_path: Path) -> Serve:
    def run(prompts: list[Prompt], *words: str) -> Records:
        return serve_prompts(warm, tmp_path / "prompts.jsonl", prompts, *words)

    return run


def test_first_prompt_is_new_and_outputs_are_outputs(serve: Serve) -> None:
    run = serve([Prompt(0, texts(1, 40), outputs=5)])
    assert causes(run, 0) == {tokens.NEW: 40, tokens.OUTPUT: 4}


def test_equal_prompt_computes_what_fills_no_block(serve: Serve) -> None:
    run = serve([Prompt(0, texts(1, 40)), Prompt(3, texts(1, 40))])
    assert causes(run, 1) == {tokens.SHORT: 8}
    assert accounts(run).of("1").found == 32


def test_preempted_within_a_block_counts_each_token_once(serve: Serve) -> None:
    """A prefill that is preempted in the middle of a block, and others that share its start."""
    chunked = ("batching=chunked", "batching.chunk_tokens=40", "cache.blocks=18")
    prompts = [Prompt(n, texts(1, 150 + n) + texts(2 + n, 70), outputs=20) for n in range(4)]
    run = serve(prompts, *chunked, "cache.prefix_caching=true")
    known = accounts(run)
    assert known.of(None).tokens == run.batch["scheduled_tokens"].sum()
    for account in known.of_request.values():
        assert min(account.computed.values()) >= 0


def test_prompts_that_part_within_a_block_share_its_first_tokens(serve: Serve) -> None:
    run = serve([Prompt(0, texts(1, 64)), Prompt(3, texts(1, 37) + texts(2, 20))])
    assert causes(run, 1) == {tokens.NEW: 20, tokens.SHORT: 5}


def test_prompt_that_ends_with_a_block_computes_the_block_of_its_newest_token(serve: Serve) -> None:
    """vllm#8005: the same prompt again is not free, and less so with larger blocks."""
    run = serve([Prompt(0, texts(1, 48)), Prompt(3, texts(1, 48))])
    assert causes(run, 1) == {tokens.LAST: 16}
    assert accounts(run).of("1").found == 32


def test_without_prefix_cache_full_blocks_are_not_kept(serve: Serve) -> None:
    """vllm#17954: the device switches the prefix cache off."""
    run = serve([Prompt(0, texts(1, 40)), Prompt(3, texts(1, 40))], OFF)
    assert causes(run, 1) == {tokens.OFF: 32, tokens.SHORT: 8}


def test_prompt_that_is_asked_for_while_it_is_computed(serve: Serve) -> None:
    """vllm#9643: requests that come together compute what they share."""
    chunked = ("batching=chunked", "batching.chunk_tokens=64")
    run = serve([Prompt(0, texts(1, 200)), Prompt(1, texts(1, 200))], *chunked)
    assert causes(run, 1) == {tokens.SHORT: 8}  # vLLM admits it once the first has been computed
    batch = run.batch.sort_values("step")
    row = batch.index[batch["request_id"] == "1"][0]
    batch.loc[row, ["step", "scheduled_tokens"]] = 1, 72
    early = run.variant(batch=batch.sort_values("step", kind="stable"))
    assert causes(early, 1) == {tokens.UNDER_WAY: 64, tokens.SHORT: 8}
    assert accounts(early).of("1").found == 128


def test_evicted_blocks_have_their_reuse_distance(serve: Serve) -> None:
    others = [Prompt(3 * n, texts(n, 160)) for n in (2, 3)]
    run = serve([Prompt(0, texts(1, 160)), *others, Prompt(12, texts(1, 160))])
    assert causes(run, 3) == {tokens.EVICTED: 160}
    assert accounts(run).of("3").evicted == {Eviction(20): 160}
    (sentence,) = (line for line in lines(accounts(run), "3") if "evicted" in line)
    assert sentence.endswith("evicted: reuse distance 20 blocks exceeds the pool's 20")


def test_eviction_below_the_pool_tells_what_others_held(serve: Serve) -> None:
    long = Prompt(0, texts(1, 160), outputs=30)
    run = serve([long, Prompt(0, texts(2, 80)), Prompt(3, texts(3, 120)), Prompt(6, texts(2, 80))])
    account = accounts(run).of("3")
    assert account.found == 16  # the first block is the last that leaves
    assert dict(account.causes) == {tokens.EVICTED: 64}
    ((eviction, _),) = account.evicted.items()
    assert eviction.distance_blocks < 20 <= eviction.distance_blocks + (eviction.held_blocks or 0)
    assert any("requests that ran held up to" in line for line in lines(accounts(run), "3"))


def test_preempted_request_computes_again_what_it_had(serve: Serve) -> None:
    prompts = [Prompt(0, texts(n, 120), outputs=60) for n in (1, 2)]
    run = serve(prompts, OFF, "overflow=recompute")
    assert len(run.preemptions)
    again = run.batch["recomputed_tokens"].sum()
    assert accounts(run).of(None).computed[tokens.PREEMPTED] == again > 0


def test_prompt_shorter_than_a_block_is_never_found(serve: Serve) -> None:
    """As a Mamba block of 8,320 tokens, which no request fills."""
    run = serve([Prompt(3 * n, texts(1, 60)) for n in range(3)], "cache.block_size=64")
    assert causes(run, 2) == {tokens.SHORT: 60}
