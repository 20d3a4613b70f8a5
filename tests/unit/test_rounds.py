"""Intervals over rounds: against plain references, and on simulated machines of known truth."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from kvscope.base.rounds import WAITING_SEEN, Rounds, waiting

TICK_S = 0.2
NAMES = "abcdefgh"


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
    result = of(logs).ratio("b", "a")
    tested = stats.ttest_rel(logs[:, 1], logs[:, 0])
    low, high = tested.confidence_interval(0.95)
    half = (high - low) / 2 * math.sqrt(rounds / (rounds - 1))
    assert result.value == pytest.approx(math.exp((low + high) / 2))
    assert math.log(result.high / result.value) == pytest.approx(half)
    assert result.half_width_share == pytest.approx(math.expm1(half))


def test_exact_effects_of_rounds_and_of_waiting_are_taken_away():
    random = np.random.default_rng(0)
    waits = random.uniform(0, 2, (8, 3))
    effects = np.array([0.0, 0.3, -0.2])
    logs = effects + random.normal(0, 1, (8, 1)) + 1.2 * waits
    result = of(logs, waits).ratio("b", "c")
    assert result.value == pytest.approx(math.exp(0.5))
    assert result.low <= result.value <= result.high


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
    result = one.ratio("c", "b")
    assert result.low <= 1.5 <= result.high
    assert result.value == pytest.approx(1.5, rel=0.03)


def test_experiments_that_no_round_connects_are_not_compared():
    one = Rounds(["a", "a", "b", "b"], [0, 1, 2, 3], [1.0, 1.1, 2.0, 2.1], [0.0] * 4)
    assert math.isnan(one.ratio("a", "b").value)
    assert math.isnan(one.ratio("a", "unknown").value)
    assert one.value("a").low < 1.05 < one.value("a").high


def test_one_round_gives_no_interval():
    one = of(np.zeros((1, 2)))
    assert math.isnan(one.ratio("a", "b").low)
    assert math.isnan(one.value("a").low)


def test_a_value_is_that_without_waiting():
    random = np.random.default_rng(6)
    waits = random.uniform(0, 2, (12, 3))
    logs = np.log([2.0, 3.0, 4.0]) + random.normal(0, 0.01, (12, 3)) + 1.2 * waits
    result = of(logs, waits)
    assert [result.value(n).value for n in "abc"] == pytest.approx([2.0, 3.0, 4.0], rel=0.05)


def test_a_sitting_counts_once_however_many_repeats_it_has():
    random = np.random.default_rng(8)
    logs, waits = random.normal(0, 0.1, (6, 2)), random.uniform(0, 1, (6, 2))
    one = of(logs, waits)
    again = Rounds(
        [*one.experiment, *one.experiment],
        [*one.round, *one.round],
        [*(1.25 * time for time in one.time), *(time / 1.25 for time in one.time)],
        [*(wait + 0.1 for wait in one.waiting), *(wait - 0.1 for wait in one.waiting)],
    )
    for found, expected in (
        (again.ratio("a", "b"), one.ratio("a", "b")),
        (again.value("a"), one.value("a")),
        (again.difference("a", "b"), one.difference("a", "b")),
    ):
        assert vars(found) == pytest.approx(vars(expected))
    assert again.count("a", "b") == 6


def test_a_difference_is_the_paired_one_of_adjusted_times():
    logs = np.random.default_rng(9).normal(0, 0.1, (6, 2))
    apart = np.exp(logs[:, 0]) - np.exp(logs[:, 1])
    result = of(logs).difference("a", "b")
    half = stats.t.ppf(0.975, 5) * apart.std(ddof=1) / math.sqrt(5)
    assert (result.value, result.high - result.value) == pytest.approx((apart.mean(), half))
    waits = np.random.default_rng(9).uniform(0, 2, (8, 3))
    exact = of(np.log([3.0, 2.0, 1.0]) + 1.2 * waits, waits)
    assert exact.difference("a", "c").value == pytest.approx(2.0)
    assert math.isnan(of(logs[:1]).difference("a", "b").value)


def test_alone_an_experiment_is_as_measured_for_nothing_tells_the_slope():
    """Each round has one repeat, whose effect is the round's or that of waiting."""
    random = np.random.default_rng(10)
    logs, waits = random.normal(0, 0.1, (6, 1)), random.uniform(0, 1, (6, 1))
    alone = of(logs, waits)
    assert alone.waited
    assert not alone.adjusts
    assert alone.value("a").value == pytest.approx(math.exp(logs.mean()))


# ------------------------------------------------------------------ known truth


@dataclass(frozen=True)
class Campaigns:
    """Simulated campaigns, each an entry of the first axis: logs and waits by round and experiment.

    `truth` are the logarithms of what the experiments have to compute.
    """

    logs: np.ndarray
    waits: np.ndarray
    truth: np.ndarray

    @property
    def each(self) -> Iterator[Rounds]:
        yield from map(of, self.logs, self.waits)

    def covered(self, other: int, base: int) -> float:
        """The share of the campaigns whose interval of this ratio has the truth in it."""
        results = [trial.ratio(NAMES[other], NAMES[base]) for trial in self.each]
        true = np.exp(self.truth[:, other] - self.truth[:, base])
        return float(np.mean([r.low <= t <= r.high for r, t in zip(results, true, strict=True)]))


def machines(
    random: np.random.Generator, count: int, seconds: float, loops: int, stalls: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Machines with two cores, by tick: their speed, and the share that an engine has of it.

    The speed drifts (sd 20 %, 3 min), and falls to a tenth in stalls; loops come and go.
    """
    ticks = int(seconds / TICK_S)
    keep = math.exp(-TICK_S / 180)
    shocks = random.normal(0, 0.2 * math.sqrt(1 - keep**2), (count, ticks))
    shocks[:, 0] = random.normal(0, 0.2, count)
    speed = np.exp(lfilter([1], [1, -keep], shocks))
    if stalls:
        speed[random.random((count, ticks)) < 0.1 * TICK_S] /= 10
    on, at_s = np.zeros((count, ticks)), np.arange(ticks) * TICK_S
    for machine in range(count):
        for _ in range(loops):
            ends = np.cumsum(random.uniform(5, 40, int(seconds / 15) + 5))
            on[machine] += (np.searchsorted(ends, at_s) + random.integers(2)) % 2
    second = int(1 / TICK_S)
    uneven = np.exp(random.normal(0, 0.25, (count, ticks // second + 1)))
    uneven = uneven.repeat(second, axis=1)[:, :ticks]
    share = np.minimum(1, 2 / (on + 1)) * np.where(on > 0, 0.97, 1) * np.where(on > 1, uneven, 1)
    return speed, share.clip(0.05, 1)


def served(
    random: np.random.Generator,
    count: int,
    rounds: int,
    work: np.ndarray,
    loops: int = 0,
    stalls: bool = False,
    slopes: tuple[float, float] = (1.15, 1.24),
    noise: np.ndarray | float = 0.0,
) -> Campaigns:
    """Campaigns on such machines: a repeat ends when its work is done.

    The experiments differ in how sensitive they are to load, from one end of `slopes` to the other;
    they vary by 2 % from repeat to repeat, more where they wait, and by `noise`.
    """
    size = work.shape[1]
    speed, share = machines(random, count, rounds * size * (3 + 3 * loops) + 200, loops, stalls)
    steep = np.linspace(*slopes, size)[:, None, None]
    begin = np.zeros((size, count, 1))
    done = np.concatenate([begin, np.cumsum(speed * share**steep * TICK_S, axis=2)], axis=2)
    ran = np.concatenate([begin[0], np.cumsum(share * TICK_S, axis=1)], axis=1)
    logs, waits = np.empty((count, rounds, size)), np.empty((count, rounds, size))
    every, at_s, spread = np.arange(count), np.full(count, 5.0), np.broadcast_to(noise, size)
    window = np.arange(int(100 / TICK_S))
    for number in range(rounds):
        order = random.permuted(np.tile(np.arange(size), (count, 1)), axis=1)
        for engine in order.T:
            progress = done[engine, every]
            target = _at(progress, at_s) + work[every, engine]
            ticks = np.minimum((at_s / TICK_S).astype(int)[:, None] + window, share.shape[1])
            reached = np.take_along_axis(progress, ticks, axis=1) >= target[:, None]
            last = ticks[every, reached.argmax(axis=1)]
            before, after = progress[every, last - 1], progress[every, last]
            end_s = (last - 1 + (target - before) / (after - before)) * TICK_S
            took_s = end_s - at_s
            waited = -np.log((_at(ran, end_s) - _at(ran, at_s)) / took_s)
            rest = np.hypot(0.02 + 0.06 * waited, spread[engine])
            logs[every, number, engine] = np.log(took_s) + rest * random.normal(0, 1, count)
            waits[every, number, engine] = waited
            at_s = end_s + 0.15
    return Campaigns(logs, waits, np.log(work))


def _at(counted: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Counts by tick, interpolated at these times."""
    place = (at_s / TICK_S).astype(int)
    part, every = at_s / TICK_S - place, np.arange(len(at_s))
    return counted[every, place] * (1 - part) + counted[every, place + 1] * part


def at_least(share: float, trials: int) -> float:
    """Least share that is observed for such a true share in so many trials, except in 2 of 100
    cases."""
    return share - 2 * math.sqrt(share * (1 - share) / trials)


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [5, 10, 20])
@pytest.mark.parametrize(
    ("experiments", "loops", "stalls"),
    [(2, 0, True), (2, 3, False), (4, 1, True), (4, 3, False), (4, 5, False)],
    ids=str,
)
def test_intervals_cover_the_truth(rounds: int, experiments: int, loops: int, stalls: bool):
    """Also the interval of the two experiments that differ most in their sensitivity to load."""
    random, trials = np.random.default_rng(1000 * rounds + 10 * experiments + loops), 300
    work = random.uniform(1, 3, (trials, experiments))
    result = served(random, trials, rounds, work, loops, stalls)
    assert result.covered(0, experiments - 1) >= at_least(0.94, trials)


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [5, 10, 20])
def test_an_experiment_that_varies_more_than_the_others_is_covered_as_well(rounds: int):
    """This fails if all are assumed to vary alike."""
    random, trials = np.random.default_rng(rounds), 300
    work, noise = random.uniform(1, 3, (trials, 8)), np.array([0.12, *[0] * 7])
    result = served(random, trials, rounds, work, loops=2, slopes=(1.2, 1.2), noise=noise)
    assert result.covered(0, 7) >= at_least(0.94, trials)


@pytest.mark.parametrize("rounds", [5, 10, 20])
def test_groups_at_different_times_are_covered_through_the_experiment_that_both_have(rounds: int):
    random, trials = np.random.default_rng(rounds), 300
    work = random.uniform(1, 3, (trials, 3))
    first, second = (
        served(random, trials, rounds, work[:, [0, one]], loops=3, slopes=(1.2, 1.2))
        for one in (1, 2)
    )
    hits = []
    for trial in range(trials):
        parts = [
            (name, (group, number), math.exp(made.logs[trial, number, column]), wait)
            for group, made in enumerate((first, second))
            for number in range(rounds)
            for column, name in ((0, "a"), (1, NAMES[group + 1]))
            for wait in [made.waits[trial, number, column]]
        ]
        ratio = Rounds(*zip(*parts, strict=True)).ratio("c", "b")
        hits.append(ratio.low <= work[trial, 2] / work[trial, 1] <= ratio.high)
    assert np.mean(hits) >= at_least(0.94, trials)


def test_a_difference_of_a_tenth_is_found_and_equal_experiments_do_not_differ():
    """Twelve rounds at the load of three loops, on a machine that drifts by 20 %."""
    random, trials = np.random.default_rng(2), 300
    work = np.tile([1.0, 1.1, 1.0, 1.1], (trials, 1)) * random.uniform(1, 3, (trials, 1))
    result = served(random, trials, 12, work, loops=3, slopes=(1.2, 1.2))
    ratios = [(trial.ratio("b", "a"), trial.ratio("c", "a")) for trial in result.each]
    assert np.mean([slower.low > 1 for slower, _ in ratios]) >= 0.8
    claimed = np.mean([equal.low > 1 or equal.high < 1 for _, equal in ratios])
    assert claimed <= 1 - at_least(0.94, trials)


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
