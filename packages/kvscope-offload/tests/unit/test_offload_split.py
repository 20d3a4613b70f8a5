"""The shares of the context: the closed form against a linear program and a brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from kvscope_offload.cost import CostModel, Line, Sizes
from kvscope_offload.minibatches import Effort, balanced, imbalance_s, in_order
from kvscope_offload.split import Demand, Split, best, device_s, link_s, step_s

SIZES = Sizes(kv_bytes=16384, activation_bytes=8192, weight_bytes=400_000_000)
GROUPED = Sizes(kv_bytes=4096, activation_bytes=8192, weight_bytes=400_000_000)
SECONDS = st.floats(1e-9, 1e-6)


def machine(rho: float, sizes: Sizes = SIZES, link: float = 1 / 25e9, forward: float = 0.0):
    """A machine that rebuilds K and V in `rho` times the time that loading them takes."""
    rebuild = Line(rho * sizes.kv_bytes * link)
    again = Line(6 * rebuild.slope_s)
    return CostModel(sizes, Line(link), rebuild, again, Line(forward), Line(0.0))


@st.composite
def cases(draw):
    rebuild = draw(SECONDS)
    cost = CostModel(
        SIZES,
        link=Line(draw(st.floats(1e-11, 1e-9))),
        rebuild=Line(rebuild),
        # A whole layer takes at least twice what its K and V take.
        recompute=Line(draw(st.floats(2, 12)) * rebuild),
        forward=Line(draw(SECONDS), draw(st.floats(0, 1e-2))),
        attend=Line(draw(st.floats(1e-10, 1e-8))),
    )
    tokens = draw(st.integers(1000, 500_000))
    return cost, Demand(
        requests=draw(st.integers(1, 256)),
        tokens=tokens,
        minibatches=draw(st.integers(1, 8)),
        device_bytes=draw(st.floats(0, 1.5)) * tokens * SIZES.kv_bytes,
        streamed=draw(st.booleans()),
    )


def linear_program(cost: CostModel, demand: Demand) -> float:
    """The shortest step over tokens as K and V or activations, on device or host, or ids alone."""
    kv, act, n = SIZES.kv_bytes, SIZES.activation_bytes, demand.tokens
    link, rebuild, again = cost.link.slope_s, cost.rebuild.slope_s, cost.recompute.slope_s
    weights = link_s(cost, demand, Split()) - link * max(0.0, n * kv - demand.device_bytes)
    bound = demand.device_bytes / (n * kv)  # shares of n, so that the numbers are of one size
    result = linprog(
        [0, 0, 0, 0, 0, 1],  # on the device kv, activation; on the host both; ids; seconds
        A_ub=[
            [0, 0, n * link * kv, n * link * act, 0, -1],
            [0, n * rebuild, 0, n * rebuild, n * again, -1],
            [1, act / kv, 0, 0, 0, 0],
        ],
        b_ub=[-weights, -device_s(cost, demand, Split()), bound],
        A_eq=[[1, 1, 1, 1, 1, 0]],
        b_eq=[1],
        bounds=[(0, 1)] * 5 + [(0, None)],
    )
    return float(result.x[5])


@given(cases())
def test_the_closed_form_is_the_optimum_of_the_linear_program(case):
    cost, demand = case
    assert step_s(cost, demand, best(cost, demand)) == pytest.approx(
        linear_program(cost, demand), rel=1e-6
    )


def exponent(low: int, high: int):
    """Numbers over many decades."""
    return st.floats(low, high).map(lambda power: 10**power)


@st.composite
def any_machine(draw):
    """A cost model and a demand of any proportion: some of it dwarfs the rest, or costs nothing.

    Computing a token again takes no less than rebuilding its K and V, which is a part of it.
    """

    def line(low: int, high: int) -> Line:
        slope = draw(st.one_of(st.just(0.0), exponent(low, high)))
        return Line(slope, draw(st.one_of(st.just(0.0), exponent(-9, 0))))

    act = draw(st.integers(1, 2**16))
    rebuild, more = line(-10, -2), line(-9, -1)
    cost = CostModel(
        Sizes(
            kv_bytes=max(1, round(act * draw(st.sampled_from([2, 2, 1.5, 1, 0.5, 0.25])))),
            activation_bytes=act,
            weight_bytes=draw(st.integers(1, 2**33)),
        ),
        link=Line(draw(exponent(-13, -6)), draw(st.sampled_from([0.0, 1e-5]))),
        rebuild=rebuild,
        recompute=Line(rebuild.slope_s + more.slope_s, rebuild.fixed_s + more.fixed_s),
        forward=line(-8, 0),
        attend=line(-12, -5),
        causal=line(-14, -6),
    )
    requests = draw(st.integers(1, 512))
    tokens = requests * draw(st.integers(1, 8192))
    whole = tokens * cost.sizes.kv_bytes
    device_bytes = draw(st.one_of(st.just(0.0), st.floats(0, 1.5))) * whole
    least = tokens * min(cost.sizes.kv_bytes, cost.sizes.activation_bytes)
    room = st.floats(max(0.0, least - device_bytes), 2.0 * whole)
    demand = Demand(
        requests,
        tokens,
        minibatches=min(requests, draw(st.integers(1, 16))),
        device_bytes=device_bytes,
        host_bytes=draw(st.one_of(st.none(), room)),
        streamed=draw(st.booleans()),
    )
    return cost, demand


def has_room(cost: CostModel, demand: Demand, split: Split) -> bool:
    sizes, n = cost.sizes, demand.tokens
    kept = n * (split.kv * sizes.kv_bytes + split.activation * sizes.activation_bytes)
    return demand.host_bytes is None or kept <= demand.host_bytes + demand.device_bytes


@given(any_machine())
def test_no_share_of_a_sweep_is_better_whatever_the_machine(case):
    """From K and V to activations and on to ids; past activations where those are not smaller."""
    cost, demand = case
    chosen, shares = best(cost, demand), np.linspace(0, 1, 101)
    if cost.sizes.activation_bytes < cost.sizes.kv_bytes:
        sweep = [Split(activation=share) for share in shares]
        sweep += [Split(activation=1 - share, token=share) for share in shares]
    else:
        sweep = [Split(token=share) for share in shares]
        assert chosen.activation == 0
    possible = [split for split in sweep if has_room(cost, demand, split)]
    shortest = min(step_s(cost, demand, split) for split in possible)
    assert step_s(cost, demand, chosen) <= shortest * (1 + 1e-6)


@pytest.mark.parametrize("rho", [0.02, 0.1, 0.3, 0.5])
def test_a_fast_rebuild_takes_activations_and_ids(rho):
    """A token computed again takes six rebuilds: (1 - t) / 2 = (1 - t) rho + 6 t rho."""
    split = best(machine(rho), Demand(requests=1, tokens=10_000, streamed=False))
    assert split.token == pytest.approx((1 / 2 - rho) / (1 / 2 + 5 * rho), abs=1e-9)
    assert split.activation == pytest.approx(1 - split.token)


@pytest.mark.parametrize("rho", [0.7, 1.0, 1.5, 3.0])
def test_a_slower_rebuild_takes_one_in_half_plus_rho(rho):
    """Without weights and forward pass, 1 - a/2 = a rho."""
    demand = Demand(requests=1, tokens=10_000, streamed=False)
    assert best(machine(rho), demand).activation == pytest.approx(1 / (0.5 + rho))


@pytest.mark.parametrize("rho", [0.01, 0.5, 2.0])
def test_grouped_queries_never_take_activations(rho):
    """They are larger than K and V; computing some tokens again may still save time."""
    split = best(machine(rho, GROUPED), Demand(requests=8, tokens=50_000))
    assert split.activation == 0.0
    assert split.token > 0


def test_a_small_host_takes_more_activations_than_the_balance():
    demand = Demand(requests=1, tokens=10_000, streamed=False)
    room = 0.6 * demand.tokens * SIZES.kv_bytes
    small = Demand(requests=1, tokens=10_000, streamed=False, host_bytes=room)
    split = best(machine(2.0), small)
    assert split.activation == pytest.approx(0.8)
    assert split.activation > best(machine(2.0), demand).activation


@given(st.floats(1e-9, 1e-3), st.floats(1e-6, 1.0))
def test_a_fit_finds_the_line_that_was_planted(slope, fixed):
    amounts = [100, 1000, 10_000]
    line = Line.fit(amounts, [fixed + slope * x for x in amounts])
    predicted = [line(x) for x in amounts]
    assert predicted == pytest.approx([fixed + slope * x for x in amounts], rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_balanced_minibatches_are_at_least_as_balanced_as_minibatches_in_order(pairs, groups):
    efforts = [Effort(*pair) for pair in pairs]
    plain, formed = in_order(len(efforts), groups), balanced(efforts, groups)
    assert imbalance_s(efforts, formed) <= imbalance_s(efforts, plain)
    assert sorted(i for group in formed for i in group) == list(range(len(efforts)))
    assert [len(group) for group in formed] == [len(group) for group in plain]


def test_requests_that_load_are_put_with_requests_that_compute():
    efforts = [Effort(1.0, 0.0)] * 4 + [Effort(0.0, 1.0)] * 4
    assert imbalance_s(efforts, balanced(efforts, 4)) == 0
    assert imbalance_s(efforts, in_order(8, 4)) == 8
