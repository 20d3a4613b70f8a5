"""Causes of tokens that recorded servers did not find, also with several KV groups.

The prompts are those of public questions about servers that find nothing.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")
from prompts import accounts, causes

from kvscope.judge.records import Records, read_records
from kvscope.plan.grid import expand
from kvscope_explain import tokens
from kvscope_explain.token_words import lines
from tests.engine.conftest import ROOT, kvscope

pytestmark = [pytest.mark.engine, pytest.mark.thorough, pytest.mark.packages]

Serve = Callable[[str, list[list[Any]], dict[str, Any]], Records]


def text(number: int, count: int) -> list[int]:
    """Tokens that begin no other text."""
    return [3 + (number * 131 + place * 7) % 900 for place in range(count)]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    def run(model: str, waves: list[list[Any]], settings: dict[str, Any]) -> Records:
        place = tmp_path_factory.mktemp(model)
        words = [f"model={model}", "profiler=none", "engine.max_model_len=512"]
        (planned,) = expand(None, words, ROOT / "config").experiments
        (place / "model").mkdir()
        config = json.dumps(planned.experiment.model.hf_config())
        (place / "model" / "config.json").write_text(config)
        script = Path(__file__).with_name("recorded_prompts.py")
        ended = subprocess.run(
            [
                *(sys.executable, str(script), str(place / "model"), str(place / "recording")),
                json.dumps(settings),
            ],
            input=json.dumps(waves),
            capture_output=True,
            text=True,
            check=False,
        )
        assert not ended.returncode, ended.stderr[-3000:]
        kvscope("collect", str(place / "recording"))
        return read_records(place / "recording")

    return run


@pytest.fixture(scope="module")
def one_group(serve: Serve) -> Records:
    shared = text(1, 150)
    waves: list[list[Any]] = [
        [shared],
        [shared],
        [text(1, 160)],
        [{"tokens": text(1, 100) + text(9, 60), "outputs": 40}],
        [text(2, 400)],
        [text(3, 400)],
        [shared],
        *([{"tokens": shared, "salt": "a tenant"}] for _ in range(2)),
    ]
    return serve("tiny-llama", waves, {})


@pytest.fixture(scope="module")
def hybrid(serve: Serve) -> Records:
    shared, whole = text(2, 300), text(7, 256)
    waves = [
        *([text(1, 100)], [text(1, 100)]),
        *([shared + text(n, 100)] for n in (3, 4, 5)),
        *([whole], [whole]),
    ]
    return serve("tiny-hybrid", waves, {"block_size": None, "max_num_batched_tokens": 512})


@pytest.mark.parametrize("name", ["one_group", "hybrid"])
def test_tokens_of_a_recording_add_up(name: str, request: pytest.FixtureRequest) -> None:
    run: Records = request.getfixturevalue(name)
    hits = run.batch.groupby("request_id")["hit_tokens"].sum()
    for request_id, account in accounts(run).of_request.items():
        rows = run.batch[run.batch["request_id"] == request_id]
        assert account.tokens == rows["scheduled_tokens"].sum()
        assert account.found == hits[request_id]
        missed = account.tokens - account.computed[tokens.OUTPUT]
        assert account.asked == account.found + account.loaded + missed


def test_recorded_prompt_computes_its_end(one_group: Records) -> None:
    assert causes(one_group, 1) == {tokens.SHORT: 22}
    assert causes(one_group, 2) == {tokens.NEW: 32}


def test_recorded_blocks_are_evicted(one_group: Records) -> None:
    assert causes(one_group, 6) == {tokens.EVICTED: 128, tokens.SHORT: 22}
    (sentence,) = (line for line in lines(accounts(one_group), "6") if "evicted" in line)
    assert "exceed the pool's 19" in sentence


def test_equal_tokens_with_a_salt_are_not_found_without_it(one_group: Records) -> None:
    """vllm#23301: no hits with an adapter, which is part of the hashes as a salt is."""
    assert causes(one_group, 7) == {tokens.SALTED: 128, tokens.SHORT: 22}
    assert accounts(one_group).of("8").found == 128


def test_prompt_shorter_than_a_block_of_a_hybrid(hybrid: Records) -> None:
    """vllm#40696, #51198, #53749, #48401: blocks of 528, 2,096 and 8,320 tokens."""
    assert causes(hybrid, 1) == {tokens.SHORT: 100}
    (sentence,) = (line for line in lines(accounts(hybrid), "1") if "shorter" in line)
    assert sentence.endswith(
        "not even its prompt of 100 tokens fills a block, so it can never be found"
    )


def test_state_that_ends_in_tokens_of_one_request_is_of_no_use(hybrid: Records) -> None:
    """vllm#45238: the state that align mode keeps is behind the shared tokens."""
    account = accounts(hybrid).of("3")
    assert account.found == 0
    assert account.computed[tokens.STATE] == 256
    (sentence,) = (line for line in lines(accounts(hybrid), "3") if tokens.STATE in line)
    assert "attention has the blocks of 256 tokens, Mamba has no state" in sentence


def test_prompt_that_fills_two_blocks_computes_the_second_again(hybrid: Records) -> None:
    """The whole prompt is cached, and its newest token takes a block."""
    assert causes(hybrid, 6) == {tokens.LAST: 128}
    assert accounts(hybrid).of("6").found == 128
