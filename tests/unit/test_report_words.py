"""How pages write configuration values."""

import pytest

from kvscope.plan import traits
from kvscope.plan.traits import setting_words


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("workload.num_requests", 1, "1 request"),
        ("workload.num_requests", 11, "11 requests"),
        ("workload.output_tokens", 1, "1 output token"),
        ("workload.rate_per_s", 1.0, "1 requests/s"),
        ("batching", "prefill_first", "prefill first"),
        ("cache.block_size", 1, "block size 1"),
    ],
)
def test_a_setting_is_written_in_words(key: str, value: object, words: str):
    assert setting_words(key, value).endswith(words)


HF = {"model": {"name": "a", "config": {"layer_types": ["full", "window"], "heads": 4}}, "seed": 1}
OTHER = {"model": {"name": "b", "config": {"layer_types": ["full", "full"]}}, "seed": 1}


def test_what_comes_with_a_model_is_no_difference_of_its_own_however_deep() -> None:
    assert traits.varied_settings([HF, OTHER]) == [{"model": "a"}, {"model": "b"}]


def test_a_list_or_a_group_is_one_value_that_can_be_counted() -> None:
    two = [HF, {**HF, "model": {"name": "a", "config": {"layer_types": ["full"], "heads": 4}}}]
    found = traits.varied_settings(two)
    assert found == [
        {"model.config.layer_types": "full, window"},
        {"model.config.layer_types": "full"},
    ]
    assert traits.names(traits.traits(found))[0].endswith("full, window")
    assert traits.single({"min": 3, "until": [0.05, None]}) == "min 3, until 0.05, None"
