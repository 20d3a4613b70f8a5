"""How pages write configuration values."""

import pytest

from kvscope.report.words import setting_words


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
