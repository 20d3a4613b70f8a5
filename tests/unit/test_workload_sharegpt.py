"""Workloads made of ShareGPT conversations, on a file of the same shape."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.base.files import sha256_of
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.workload import requests, sharegpt

CONFIG = Path(__file__).parents[2] / "config"


def conversation(*texts: str) -> dict[str, Any]:
    speakers = ("human", "gpt")
    turns = [{"from": speakers[i % 2], "value": text} for i, text in enumerate(texts)]
    return {"id": "x", "conversations": turns}


# Prompts of 40, 80, … 400 characters and outputs of 8, 16, … 80.
FITTING = [conversation("word " * 8 * n, "answer. " * n, "more") for n in range(1, 11)]
TOO_SHORT = conversation("why?", "because")
TOO_LONG = conversation("x" * 4000, "y" * 4000)
SINGLE_TURN = conversation("anyone here?")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([TOO_SHORT, *FITTING, TOO_LONG, SINGLE_TURN]))
    return path


def experiment(path: Path, *overrides: str) -> Experiment:
    words = ["workload=sharegpt", f"workload.path='{path}'", *overrides]
    return expand(None, words, CONFIG).experiments[0].experiment


def lengths(found: Experiment) -> list[tuple[int, int]]:
    return [(len(r.prompt_token_ids), r.output_tokens) for r in requests.build(found)]


def test_lengths_are_those_of_the_first_two_turns_of_what_fits(path: Path) -> None:
    result = lengths(experiment(path, "workload.num_requests=10"))
    assert sorted(result) == [(10 * n, 2 * n) for n in range(1, 11)]


def test_the_seed_orders_the_conversations(path: Path) -> None:
    one, again, other = (
        lengths(experiment(path, "workload.num_requests=10", f"seed={seed}")) for seed in (1, 1, 2)
    )
    assert one == again != other
    assert sorted(one) == sorted(other)


def test_fewer_requests_are_the_first_of_more(path: Path) -> None:
    many = lengths(experiment(path, "workload.num_requests=10"))
    assert lengths(experiment(path, "workload.num_requests=4")) == many[:4]


def test_max_tokens_bounds_prompt_and_output_together(path: Path) -> None:
    result = lengths(experiment(path, "workload.num_requests=5", "workload.max_tokens=60"))
    assert sorted(result) == [(10, 2), (20, 4), (30, 6), (40, 8), (50, 10)]


@pytest.mark.parametrize("seed", [1, 2])
def test_more_requests_than_fit_are_refused(path: Path, seed: int) -> None:
    result = experiment(path, "workload.num_requests=11", f"seed={seed}")
    for use in (requests.check, requests.build):
        with pytest.raises(BadInput) as error:
            use(result)
        assert "workload.num_requests is 11" in str(error.value)
        assert "holds 10 conversations of at most workload.max_tokens (1024)" in str(error.value)


def test_sources_tell_an_estimate_from_a_tokenizer(path: Path, tmp_path: Path) -> None:
    estimated = experiment(path).workload.facts()
    assert estimated["sha256"] == sha256_of(path)
    assert estimated["lengths"] == "estimated, 4 characters a token"
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json")
    counted = experiment(path, f"workload.tokenizer='{tokenizer}'").workload.facts()
    assert counted["lengths"] == "tokenizer"
    assert counted["tokenizer_sha256"] == sha256_of(tokenizer)


def word_tokenizer(path: Path) -> Path:
    """A tokenizer.json to which every word is a token."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the engine's packages")
    model = tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(path))
    return path


def test_a_tokenizer_counts_tokens(path: Path, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json")
    words = [f"workload.tokenizer='{tokenizer}'", "workload.num_requests=10"]
    result = lengths(experiment(path, *words))
    assert sorted(result) == [(8 * n, n) for n in range(1, 11)]


def test_a_file_that_is_no_tokenizer_is_refused(path: Path) -> None:
    with pytest.raises(BadInput, match=r"workload.tokenizer is .* must be a tokenizer.json"):
        requests.check(experiment(path, f"workload.tokenizer='{path}'"))


def test_a_file_that_is_absent_is_refused_with_what_to_bring(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        experiment(tmp_path / "none.json")
    assert "anon8231489123/ShareGPT_Vicuna_unfiltered" in str(error.value)
    assert "ShareGPT_V3_unfiltered_cleaned_split.json" in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not readable as JSON"),
        ("{}", "must be a list of conversations"),
        ("[3]", "conversation 0 must have 'conversations'"),
        ('[{"conversations": [{"value": "a"}, {"from": "gpt"}]}]', "conversation 0 must have"),
        ('[{"conversations": 3}]', "conversation 0 must have 'conversations'"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        requests.check(experiment(path))
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


def test_many_experiments_read_the_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    first_turns = sharegpt._first_turns

    def noting_turns(items: list[Any], p: str) -> Iterator[Any]:
        parsed.append(p)
        return first_turns(items, p)

    monkeypatch.setattr(sharegpt, "_first_turns", noting_turns)
    planned = experiment(path, "workload.num_requests=3")
    for seed in range(20):
        requests.check(planned.model_copy(update={"seed": seed}))
        requests.build(planned.model_copy(update={"seed": seed}))
    assert parsed == [str(path)]
