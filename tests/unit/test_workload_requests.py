"""Request lists: the same for the same experiment, and one thing changed shifts no other."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.plan.workload import split_total
from kvscope.workload import requests
from kvscope.workload.requests import Request, build

CONFIG = Path(__file__).parents[2] / "config"
SYNTHETIC = ["fixed", "uniform", "zipf"]


def experiment(*overrides: str) -> Experiment:
    (planned,) = expand(None, list(overrides), CONFIG).experiments
    return planned.experiment


def lengths(found: list[Request]) -> list[tuple[int, int]]:
    return [(len(r.prompt_token_ids), r.output_tokens) for r in found]


def same(one: list[Request], other: list[Request]) -> bool:
    return all(
        (a.request_id, a.arrival_s, a.output_tokens) == (b.request_id, b.arrival_s, b.output_tokens)
        and np.array_equal(a.prompt_token_ids, b.prompt_token_ids)
        for a, b in zip(one, other, strict=True)
    )


POISSON = ["workload.arrival=poisson", "workload.rate_per_s=20"]


@pytest.mark.parametrize("workload", SYNTHETIC)
def test_the_same_experiment_has_the_same_requests(workload: str) -> None:
    overrides = [f"workload={workload}", *POISSON]
    assert same(build(experiment(*overrides)), build(experiment(*overrides)))


@pytest.mark.parametrize("workload", SYNTHETIC)
def test_fewer_requests_are_the_first_of_more(workload: str) -> None:
    overrides = [f"workload={workload}", *POISSON]
    many = build(experiment(*overrides, "workload.num_requests=40"))
    few = build(experiment(*overrides, "workload.num_requests=7"))
    assert same(few, many[:7])


@pytest.mark.parametrize("workload", SYNTHETIC)
def test_another_seed_gives_other_requests(workload: str) -> None:
    one, other = (
        build(experiment(f"workload={workload}", f"seed={seed}", *POISSON)) for seed in (1, 2)
    )
    assert [r.prompt_token_ids[0] for r in one] != [r.prompt_token_ids[0] for r in other]
    assert [r.arrival_s for r in one] != [r.arrival_s for r in other]
    assert (lengths(one) != lengths(other)) == (workload != "fixed")


def test_arrivals_shift_neither_lengths_nor_tokens() -> None:
    at_once, poisson = (
        build(experiment("workload=zipf")),
        build(experiment("workload=zipf", *POISSON)),
    )
    assert lengths(at_once) == lengths(poisson)
    for one, other in zip(at_once, poisson, strict=True):
        assert np.array_equal(one.prompt_token_ids, other.prompt_token_ids)


def test_a_longer_prompt_goes_on_where_a_shorter_one_ends() -> None:
    short = build(experiment("workload.prompt_tokens=50"))
    long = build(experiment("workload.prompt_tokens=90"))
    for one, other in zip(short, long, strict=True):
        assert np.array_equal(one.prompt_token_ids, other.prompt_token_ids[:50])


def test_token_ids_are_plain_and_of_the_whole_vocabulary() -> None:
    result = build(experiment("workload.num_requests=200", "workload.prompt_tokens=500"))
    ids = np.concatenate([r.prompt_token_ids for r in result])
    assert ids.dtype == np.int32
    counts = np.bincount(ids, minlength=1024)
    assert counts[:3].sum() == 0, "ids that pad, begin or end a text"
    assert len(counts) == 1024
    # 100,000 draws from 1,021 ids: 98 of each, give or take 10; six such steps never happen.
    assert counts[3:].min() > 38
    assert counts[3:].max() < 158


def test_no_two_prompts_begin_alike() -> None:
    result = build(experiment("workload.num_requests=100"))
    assert len({tuple(r.prompt_token_ids[:8]) for r in result}) == 100


def test_all_at_once_is_time_zero() -> None:
    assert {r.arrival_s for r in build(experiment())} == {0.0}


def test_poisson_arrivals_have_the_rate_asked_for() -> None:
    overrides = ["workload.num_requests=5000", "workload.prompt_tokens=4", *POISSON]
    times = np.array([r.arrival_s for r in build(experiment(*overrides))])
    gaps = np.diff(times)
    assert times[0] == 0
    assert (gaps >= 0).all()
    # Exponential gaps of mean 1/20 s: mean and standard deviation agree, within 5 standard errors.
    assert gaps.mean() == pytest.approx(1 / 20, rel=5 / 5000**0.5)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.1)


def test_twice_the_rate_is_half_the_time() -> None:
    slow, fast = (
        build(experiment("workload.arrival=poisson", f"workload.rate_per_s={rate}"))
        for rate in (10, 20)
    )
    for one, other in zip(slow, fast, strict=True):
        assert other.arrival_s == pytest.approx((one.arrival_s or 0) / 2)


def test_requests_are_numbered_from_zero_in_order_of_arrival() -> None:
    result = build(experiment(*POISSON))
    assert [r.request_id for r in result] == [str(i) for i in range(16)]
    arrivals = [r.arrival_s or 0 for r in result]
    assert arrivals == sorted(arrivals)


def test_the_frame_is_the_workload_table(tmp_path: Path) -> None:
    result = build(experiment("workload=zipf", *POISSON))
    path = tmp_path / "workload.parquet"
    tables.write(tables.WORKLOAD, requests.to_frame(result), path)
    frame = tables.read(tables.WORKLOAD, path)
    assert list(frame.request_id) == [r.request_id for r in result]
    assert list(frame.arrival_s) == [r.arrival_s for r in result]
    assert list(zip(frame.prompt_tokens, frame.output_tokens, strict=True)) == lengths(result)
    for row, request in zip(frame.prompt_token_ids, result, strict=True):
        assert np.array_equal(row, request.prompt_token_ids)


@pytest.mark.parametrize("workload", SYNTHETIC)
def test_a_synthetic_workload_has_no_file(workload: str) -> None:
    result = experiment(f"workload={workload}")
    assert result.workload.facts() == {"workload": workload}
    requests.check(result)


@given(total=st.integers(2, 10**6), ratio=st.floats(1e-3, 1e6))
def test_a_split_keeps_the_total_and_gives_both_sides_something(total: int, ratio: float) -> None:
    result = split_total(total, ratio)
    assert result.total == total
    assert min(result.prompt, result.output) >= 1
    if 1 < result.output < total - 1:
        assert result.output - 1 < total / (1 + ratio) <= result.output


@cache
def defaults(workload: str) -> Experiment:
    return experiment(f"workload={workload}")


@given(
    workload=st.sampled_from(["uniform", "zipf"]),
    bounds=st.tuples(st.integers(2, 512), st.integers(2, 512)).map(sorted),
    seed=st.integers(0, 2**32 - 1),
)
def test_drawn_lengths_keep_to_their_bounds(workload: str, bounds: list[int], seed: int) -> None:
    low, high = bounds
    default = defaults(workload)
    bounded = {"num_requests": 50, "min_tokens": low, "max_tokens": high}
    changed = {"workload": default.workload.model_copy(update=bounded), "seed": seed}
    totals = [p + o for p, o in lengths(build(default.model_copy(update=changed)))]
    assert low <= min(totals)
    assert max(totals) <= high


def test_uniform_reaches_both_bounds_alike() -> None:
    bounds = ["workload.min_tokens=2", "workload.max_tokens=5"]
    result = build(experiment("workload=uniform", "workload.num_requests=4000", *bounds))
    counts = np.bincount([p + o for p, o in lengths(result)])
    assert counts[:2].sum() == 0
    # 1,000 of each total, give or take 27.
    assert all(abs(count - 1000) < 5 * 27 for count in counts[2:])
