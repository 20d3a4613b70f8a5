"""The Zipf workload against the published one.

Numbers are from the published logs of the study of KV caches under concurrency (github.com/
Jye-525/UnBoxKV-IO at 3b0e2e7): seed 1234, θ 0.6.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvscope.plan.workload import Lengths
from kvscope.workload import zipf
from kvscope.workload.zipf import Zipf


def published(low: int, high: int, count: int, ratio: float) -> list[Lengths]:
    workload = Zipf(
        name="zipf",
        arrival="all_at_once",
        num_requests=count,
        min_tokens=low,
        max_tokens=high,
        prompt_to_output_ratio=ratio,
        theta=0.6,
    )
    return workload.lengths(seed=1234)


def pairs(found: list[Lengths]) -> list[tuple[int, int]]:
    return [(item.prompt, item.output) for item in found]


def test_the_published_list_of_20() -> None:
    assert pairs(published(128, 2048, 20, 20)) == [
        *((166, 9), (719, 36), (388, 20), (1152, 58), (1136, 57), (215, 11), (218, 11)),
        *((1203, 61), (1773, 89), (1456, 73), (291, 15), (483, 25), (864, 44), (941, 48)),
        *((304, 16), (591, 30), (487, 25), (121, 7), (1114, 56), (1480, 75)),
    ]


def test_the_published_lists_of_10() -> None:
    assert pairs(published(512, 2048, 10, 20)) == [
        *((524, 27), (967, 49), (702, 36), (1314, 66), (1300, 66)),
        *((564, 29), (566, 29), (1356, 68), (1809, 91), (1556, 78)),
    ]
    assert pairs(published(512, 4096, 10, 20)) == [
        *((564, 29), (1585, 80), (970, 49), (2398, 120), (2366, 119)),
        *((652, 33), (658, 33), (2495, 125), (3566, 179), (2969, 149)),
    ]


@pytest.mark.parametrize(
    ("low", "high", "prompts", "outputs", "last"),
    [
        (128, 2048, 31_363, 62_848, (280, 561)),
        (128, 8192, 112_252, 224_628, (1016, 2033)),
        (512, 2048, 42_645, 85_419, (361, 724)),
    ],
)
def test_the_published_lists_of_128(
    low: int, high: int, prompts: int, outputs: int, last: tuple[int, int]
) -> None:
    result = published(low, high, 128, 0.5)
    assert sum(item.prompt for item in result) == prompts
    assert sum(item.output for item in result) == outputs
    assert pairs(result)[-1] == last


@example(draws=[0.5, float(np.nextafter(1, 0))], items=3000, theta=0.99)
@given(
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=20),
    items=st.integers(1, 3000),
    theta=st.floats(0.01, 0.99),
)
def test_ranks_are_in_range_and_grow_with_the_draw(
    draws: list[float], items: int, theta: float
) -> None:
    ranks = zipf.zipf_ranks(np.array(sorted(draws)), items, theta)
    assert all(0 <= rank < items for rank in ranks)
    assert ranks == sorted(ranks)


def test_short_requests_are_likelier_and_more_so_with_theta() -> None:
    draws = np.random.default_rng(0).random(20_000)
    mild, strong = (np.mean(zipf.zipf_ranks(draws, 1000, theta)) for theta in (0.2, 0.9))
    assert strong < mild < 500


def test_two_lengths_are_even() -> None:
    assert zipf.zipf_ranks(np.array([0.0, 0.49, 0.5, 0.99]), 2, 0.6) == [0, 0, 1, 1]
