"""Regret of `adaptive` against the best single policy: only otherwise equal experiments count."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvscope.base.statistics import Interval
from kvscope.metrics.estimates import Estimates, ExperimentMetrics
from kvscope_paper.adaptive import adaptive_regret, regrets


def run(
    overflow: str,
    net_s: float,
    model: str = "m",
    copies: str | None = None,
    noise: float = 0.0,
    valid: bool = True,
    **more: Any,
) -> Any:
    numbers = {"resume_overhead_net_s": net_s, "makespan_s": 10 + net_s, "preemptions": 1.0} | more
    keys = {"model": model, "overflow": overflow} | ({"overflow.copies": copies} if copies else {})
    rows = [(name, value, value - noise, value + noise, 3) for name, value in numbers.items()]
    frame = pd.DataFrame(rows, columns=["metric", "value", "ci_low", "ci_high", "repeats_valid"])
    metrics = frame.set_index("metric", drop=False).assign(time_source="measured")
    return SimpleNamespace(
        id=repr((keys, numbers)),
        as_measured=ExperimentMetrics({}, metrics),
        flat=keys,
        settings={"overflow": {"name": overflow}},
        number=lambda name: Interval(numbers[name], numbers[name] - noise, numbers[name] + noise),
        believed=lambda name: valid,
    )


def study(*runs: Any) -> Any:
    estimates = Estimates({run.id: run.as_measured for run in runs})
    return SimpleNamespace(complete=list(runs), estimates=estimates)


SINGLES = (run("recompute", 2.0), run("swap", 1.0, copies="a"), run("swap", 0.5, copies="b"))


def test_the_best_is_of_the_policies_with_the_same_copies() -> None:
    (result,) = regrets(study(*SINGLES, run("adaptive", 1.1, copies="a")), "resume_overhead_net_s")
    assert result.best is SINGLES[1]
    assert result.share == pytest.approx(0.1)


def test_other_models_are_not_compared() -> None:
    adaptive = run("adaptive", 1.1, copies="a", model="other")
    assert regrets(study(*SINGLES, adaptive), "makespan_s") == []


def test_what_adaptive_loses_where_nobody_is_preempted_is_told() -> None:
    """There is no overhead of preemptions then, and still saving may make passes longer."""
    singles = [run(name, 0.0, preemptions=0.0) for name in ("recompute", "swap")]
    adaptive = run("adaptive", 0.0, preemptions=0.0, makespan_s=10.4)
    assert adaptive_regret(study(*singles, adaptive)) == [
        "Adaptive beside the best single policy, 1 experiment: makespan at most 4 % above it "
        "(more than 3 % in 1)."
    ]


def test_the_sentence_has_the_most_that_is_lost_and_where_which_policy_is_best() -> None:
    other = [run("recompute", 1.0, "n"), run("swap", 2.0, "n", "a"), run("adaptive", 1.0, "n", "a")]
    (sentence,) = adaptive_regret(study(*SINGLES, run("adaptive", 1.1, copies="a"), *other))
    assert "2 experiments: net resume overhead at most 10 % above it" in sentence
    assert "it (more than 3 % in 1) and makespan at most 0.91 % above it. By" in sentence
    assert "swap in 1 and recompute in 1" in sentence


def test_values_that_are_not_valid_are_left_out() -> None:
    cheap = run("activation", 0.1, copies="a", valid=False)
    (result,) = regrets(study(*SINGLES, cheap, run("adaptive", 1.0, copies="a")), "makespan_s")
    assert result.best is SINGLES[1]
    assert (
        regrets(study(*SINGLES, run("adaptive", 9.0, copies="a", valid=False)), "makespan_s") == []
    )


def test_a_loss_within_the_noise_is_said_to_be_so() -> None:
    singles = (run("recompute", 2.0), run("swap", 1.0, copies="a", noise=0.1))
    for noise, words in (
        (0.02, "(4.9\xa0% to 27\xa0%; more than 3 % in 1)"),
        (0.2, "(0.96\xa0% lower to 32\xa0% higher; more than 3 % in 1, beyond the noise in 0)"),
    ):
        adaptive = run("adaptive", 1.15, copies="a", noise=noise)
        (sentence,) = adaptive_regret(study(*singles, adaptive))
        assert f"net resume overhead at most 15 % above it {words}" in sentence
