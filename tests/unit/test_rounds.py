"""Intervals over rounds: against plain references, and on simulated machines of known truth."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from kvscope.rounds import WAITING_SEEN, Rounds, waiting

TICK_S = 0.05
NAMES = ("a", "b", "c", "d")


def of(logs: np.ndarray, waits: np.ndarray | None = None) -> Rounds:
    """Complete rounds from arrays of one row a round and one column an experiment."""
    waits = np.zeros_like(logs) if waits is None else waits
    rows, columns = logs.shape
    names = [NAMES[column] for _ in range(rows) for column in range(columns)]
    numbers = [row for row in range(rows) for _ in range(columns)]
    return Rounds(names, numbers, np.exp(logs).ravel().tolist(), waits.ravel().tolist())


def test_waiting_is_minus_the_log_of_the_share_that_ran():
    assert waiting(3.0, 1.0) == pytest.approx(-math.log(1 - 0.25))
    assert waiting(0.0, 0.0) == waiting(2.0, 0.0) == 0


@pytest.mark.parametrize("rounds", [2, 5, 20])
def test_where_nothing_waits_a_ratio_is_the_paired_t_test(rounds: int):
    """But for HC3's factor √(n / (n−1)); the confidence interval is scipy's."""
    logs = np.random.default_rng(rounds).normal(0, 0.1, (rounds, 2))
    found = of(logs).ratio("b", "a")
    tested = stats.ttest_rel(logs[:, 1], logs[:, 0])
    low, high = tested.confidence_interval(0.95)
    half = (high - low) / 2 * math.sqrt(rounds / (rounds - 1))
    assert found.value == pytest.approx(math.exp((low + high) / 2))
    assert math.log(found.high / found.value) == pytest.approx(half)
    assert found.half_width_share == pytest.approx(math.expm1(half))


def test_exact_effects_of_rounds_and_of_waiting_are_taken_away():
    random = np.random.default_rng(0)
    waits = random.uniform(0, 2, (8, 3))
    effects = np.array([0.0, 0.3, -0.2])
    logs = effects + random.normal(0, 1, (8, 1)) + 1.2 * waits
    found = of(logs, waits).ratio("b", "c")
    assert found.value == pytest.approx(math.exp(0.5))
    assert found.low <= found.value <= found.high


def test_order_of_the_repeats_and_the_unit_of_time_do_not_matter():
    random = np.random.default_rng(3)
    logs, waits = random.normal(0, 0.1, (6, 3)), random.uniform(0, 1, (6, 3))
    one = of(logs, waits)
    order = random.permutation(18)

    other = Rounds(
        [one.experiment[place] for place in order],
        [one.round[place] for place in order],
        [1000 * one.time[place] for place in order],
        [one.waiting[place] for place in order],
    )
    for pair in (("a", "b"), ("c", "b")):
        ends = [(r.value, r.low, r.high) for r in (one.ratio(*pair), other.ratio(*pair))]
        assert ends[0] == pytest.approx(ends[1])
    assert other.value("a").value == pytest.approx(1000 * one.value("a").value)


def test_a_ratio_and_its_inverse_agree():
    random = np.random.default_rng(4)
    one = of(random.normal(0, 0.1, (6, 3)), random.uniform(0, 1, (6, 3)))
    there, back = one.ratio("a", "b"), one.ratio("b", "a")
    assert (there.value, there.low, there.high) == pytest.approx(
        (1 / back.value, 1 / back.high, 1 / back.low)
    )
    assert one.ratio("a", "a").half_width_share == 0


def test_groups_are_compared_through_an_experiment_that_both_have():
    """`a` is in both groups; rounds 0 to 4 are the first group's, the others twice as slow."""
    random = np.random.default_rng(5)
    effect = {"a": 1.0, "b": 2.0, "c": 3.0}
    rows = [(n, r) for r in range(5) for n in "ab"] + [(n, r) for r in range(5, 10) for n in "ac"]
    time = [effect[n] * (2 if r > 4 else 1) * math.exp(random.normal(0, 0.01)) for n, r in rows]
    one = Rounds([n for n, _ in rows], [r for _, r in rows], time, [0.0] * len(rows))
    found = one.ratio("c", "b")
    assert found.low <= 1.5 <= found.high
    assert found.value == pytest.approx(1.5, rel=0.03)


def test_what_no_round_connects_is_not_compared():
    one = Rounds(["a", "a", "b", "b"], [0, 1, 2, 3], [1.0, 1.1, 2.0, 2.1], [0.0] * 4)
    assert math.isnan(one.ratio("a", "b").value)
    assert math.isnan(one.ratio("a", "unknown").value)
    assert one.value("a").low < 1.05 < one.value("a").high


def test_one_round_gives_no_interval():
    one = of(np.zeros((1, 2)))
    assert math.isnan(one.ratio("a", "b").low)
    assert math.isnan(one.value("a").low)


def test_a_value_is_what_it_is_where_nothing_waits():
    random = np.random.default_rng(6)
    waits = random.uniform(0, 2, (12, 3))
    logs = np.log([2.0, 3.0, 4.0]) + random.normal(0, 0.01, (12, 3)) + 1.2 * waits
    found = of(logs, waits)
    assert [found.value(n).value for n in "abc"] == pytest.approx([2.0, 3.0, 4.0], rel=0.05)


# ------------------------------------------------------------------ known truth


def machine(random: np.random.Generator, seconds: float, loops: int, stalls: bool) -> np.ndarray:
    """By tick, the speed of a machine of two cores, and the share of its time that an engine runs.

    The speed drifts (sd 20 %, 3 min), and falls to a tenth in stalls; loops come and go.
    """
    ticks = int(seconds / TICK_S)
    keep = math.exp(-TICK_S / 180)
    shocks = random.normal(0, 0.2 * math.sqrt(1 - keep**2), ticks)
    shocks[0] = random.normal(0, 0.2)
    speed = np.exp(lfilter([1], [1, -keep], shocks))
    if stalls:
        speed[random.random(ticks) < 0.05 * TICK_S] /= 10
    on = np.zeros(ticks)
    for _ in range(loops):
        at, state = 0.0, random.random() < 0.5
        while at < seconds:
            until = at + random.uniform(5, 40)
            on[int(at / TICK_S) : int(until / TICK_S)] += state
            at, state = until, not state
    uneven = np.exp(random.normal(0, 0.25, ticks // 20 + 1)).repeat(20)[:ticks]
    share = np.minimum(1, 2 / (on + 1)) * np.where(on > 0, 0.97, 1) * np.where(on > 1, uneven, 1)
    return np.array([speed, share.clip(0.05, 1)])


def serve(of_machine: np.ndarray, start_s: float, work: float, slope: float) -> tuple[float, float]:
    """Seconds of a repeat with so much work that starts then, and its waiting."""
    speed, share = of_machine[:, int(start_s / TICK_S) :][:, : int(600 / TICK_S)]
    done = np.cumsum(speed * share**slope) * TICK_S
    last = int(np.searchsorted(done, work))
    before = done[last - 1] if last else 0.0
    took = (last + (work - before) / (done[last] - before)) * TICK_S
    return took, -math.log(share[: last + 1].mean())


def trial(
    random: np.random.Generator, experiments: int, rounds: int, loops: int, stalls: bool
) -> list[bool]:
    """Whether each pair's interval has the truth in it; engines are not equally sensitive."""
    work = random.uniform(1, 3, experiments)
    slopes = 1.2 + random.normal(0, 0.05, experiments)
    made = machine(random, rounds * experiments * 12 * (1 + loops) + 700, loops, stalls)
    at_s, rows = 5.0, []
    for number in range(rounds):
        for one in random.permutation(experiments):
            amount = work[one] * math.exp(random.normal(0, 0.02))
            took, waited = serve(made, at_s, amount, slopes[one])
            rows.append((NAMES[one], number, took, waited))
            at_s += took + 0.15
    names, numbers, times, waits = map(list, zip(*rows, strict=True))
    found = Rounds(names, numbers, times, waits)
    return [
        (r := found.ratio(NAMES[a], NAMES[b])).low <= work[a] / work[b] <= r.high
        for a in range(experiments)
        for b in range(a)
    ]


@pytest.mark.parametrize("rounds", [5, 10, 20])
@pytest.mark.parametrize(
    ("loops", "stalls"), [(0, False), (0, True), (1, True), (3, False)], ids=str
)
def test_intervals_cover_the_truth(rounds: int, loops: int, stalls: bool):
    """At least 94 %, less two standard errors of so many trials."""
    random = np.random.default_rng(1000 * rounds + loops)
    for experiments, trials in ((2, 200), (4, 50)):
        hits = [trial(random, experiments, rounds, loops, stalls) for _ in range(trials)]
        covered = np.mean(hits)
        error = math.sqrt(0.06 / trials)  # pairs of one trial are not independent
        assert covered >= 0.94 - 2 * math.sqrt(0.94) * error, (experiments, covered)


def test_more_rounds_narrow_the_interval_and_waiting_widens_it():
    random = np.random.default_rng(7)
    widths = [
        of(random.normal(0, 0.05, (rounds, 2))).ratio("a", "b").half_width_share
        for rounds in (5, 20, 80)
    ]
    assert widths == sorted(widths, reverse=True)
    logs = random.normal(0, 0.05, (20, 2))
    waits = np.full((20, 2), 2 * WAITING_SEEN) + random.uniform(0, 1, (20, 2))
    assert of(logs, waits).ratio("a", "b").half_width_share > widths[1]
