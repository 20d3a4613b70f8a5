"""`cache.oversubscription`: a cache sized by what its requests need."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.plan.models import KvLayers
from kvscope.workload.requests import build

CONFIG = Path(__file__).parents[2] / "config"
DRY = ("device=dry", "engine.max_model_len=256", "workload.max_tokens=256")


def planned(*overrides: str, workload: str = "zipf") -> Experiment:
    (one,) = expand(None, [*DRY, f"workload={workload}", *overrides], CONFIG).experiments
    return one.experiment


@settings(max_examples=10)  # each composes an experiment
@given(ratio=st.floats(0.5, 8.0), seed=st.integers(0, 9), size=st.sampled_from([16, 64]))
def test_the_cache_has_the_blocks_of_all_requests_over_the_ratio(
    ratio: float, seed: int, size: int
) -> None:
    words = (f"cache.oversubscription={ratio}", f"seed={seed}", f"cache.block_size={size}")
    experiment = planned(*words, "workload.num_requests=40")
    needed = sum(-(-length.total // size) for length in experiment.workload.lengths(seed))
    assert experiment.cache_blocks <= needed / ratio < experiment.cache_blocks + 1


@pytest.mark.parametrize(
    "model", ["tiny-gqa", "tiny-window", "tiny-interleaved", "tiny-chunked", "tiny-hybrid"]
)
@settings(max_examples=6)
@given(seed=st.integers(0, 9), size=st.sampled_from([32, 96]))
def test_a_request_counts_with_the_most_blocks_of_all_kv_groups(
    model: str, seed: int, size: int
) -> None:
    words = (f"model={model}", f"cache.block_size={size}", f"seed={seed}")
    asked = planned(*words, "cache.oversubscription=1")

    def held(kind: KvLayers, newest: int) -> int:
        window = kind.window_tokens or 1
        starts = {"sliding_window": newest - window + 1, "chunked_local": newest - newest % window}
        first = max(0, starts.get(kind.kind, 0))
        return 1 if kind.state_bytes else newest // size - first // size + 1

    def most(tokens: int) -> int:
        kinds = [(kind, asked.model.groups(kind)) for kind in asked.model.kept]
        return max(sum(n * held(kind, at) for kind, n in kinds) for at in range(tokens))

    needed = sum(most(length.total) for length in asked.workload.lengths(seed))
    assert asked.cache_blocks == needed


def test_a_filled_in_value_belongs_to_the_settings() -> None:
    one, other = planned("cache.oversubscription=2"), planned("cache.oversubscription=1.5")
    assert one.to_dict()["cache"]["blocks"] == one.cache_blocks < other.cache_blocks
    assert "-o2x" in one.id


def test_an_experiment_of_a_size_in_blocks_knows_nothing_of_it() -> None:
    experiment = planned("cache.blocks=64")
    assert "oversubscription" not in experiment.to_dict()["cache"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cache.oversubscription=2", "cache.blocks=99"], "both size the cache"),
        (["cache.oversubscription=2", "cache.gib=1"], "both size the cache"),
        (["cache.oversubscription=0"], "cache.oversubscription is 0"),
        (["cache.oversubscription=900"], "change cache.oversubscription"),
        (["cache.oversubscription=2", "workload.num_requests=0"], "workload.num_requests is 0"),
        (["cache.oversubscription=2", "cache.block_size=0"], "cache.block_size is 0"),
    ],
)
def test_what_sizes_no_cache_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        planned(*words)


def test_a_conversation_needs_the_blocks_of_its_longest_turn() -> None:
    words = ("workload.num_conversations=3", "cache.oversubscription=1")
    experiment = planned(*words, workload="conversation")
    longest: dict[str, int] = {}
    for request in build(experiment):
        tokens = len(request.prompt_token_ids) + request.output_tokens
        longest[str(request.conversation)] = max(longest.get(str(request.conversation), 0), tokens)
    size = experiment.cache.block_size
    assert experiment.cache_blocks == sum(-(-tokens // size) for tokens in longest.values())
