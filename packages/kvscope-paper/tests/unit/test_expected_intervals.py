"""The interval in which a published time is expected."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope_paper.comparison import Comparison
from kvscope_paper.predictive import (
    FEWEST_ERRORS,
    coverage,
    left_out_errors,
    spread,
    with_intervals,
)
from kvscope_paper.published.figures import points
from kvscope_paper.published.fitted import fitted_figures

A100 = "modeled a100-40gb"


def times(*figures: str, factor: float = 1.0, device: str = A100) -> list[Comparison]:
    """The published times of figures, ours longer by a factor."""
    return [
        Comparison(p, device, None, p.value * factor, math.nan, math.nan, p.value * factor, "s")
        for p in points(figures)
    ]


Found = dict[str, list[float]]
errors: st.SearchStrategy[Found] = st.dictionaries(
    st.sampled_from("abcd"),
    st.lists(st.floats(-1, 1), min_size=FEWEST_ERRORS, max_size=60),
    min_size=2,
)


@given(errors, st.floats(-1, 1))
def test_a_figures_own_errors_do_not_move_its_interval(found: Found, error: float) -> None:
    figure = next(iter(found))
    assert spread(found, figure) == spread({**found, figure: [error]}, figure)


@given(errors)
def test_an_interval_holds_nineteen_of_twenty_of_the_others_errors(
    found: Found,
) -> None:
    figure = next(iter(found))
    others = [abs(e) for name, own in found.items() if name != figure for e in own]
    size = spread(found, figure)
    assert size is not None
    assert np.mean(np.array(others) <= size + 1e-12) >= 0.95 - 1 / len(others)


def test_intervals_contain_nineteen_of_twenty_errors_from_one_source() -> None:
    generator = np.random.default_rng(7)
    result = {name: list(generator.normal(0, 0.05, 500)) for name in "abcd"}
    covered = coverage(result)
    assert covered is not None
    assert covered.times == 2000
    assert covered.share == pytest.approx(0.95, abs=0.01)
    assert covered.median_width == pytest.approx(2 * math.sinh(1.96 * 0.05), rel=0.05)


def test_a_figure_that_is_off_otherwise_than_the_others_is_not_held() -> None:
    result = {"a": [0.01] * 40, "b": [-0.01] * 40, "off": [0.3] * 40}
    covered = coverage(result, ["off"])
    assert covered is not None
    assert covered.held == 0


def test_fewer_errors_than_twenty_make_no_interval() -> None:
    enough = {"a": [0.1] * FEWEST_ERRORS, "b": [0.1]}
    assert spread(enough, "b") == pytest.approx(0.1)
    assert spread(enough, "a") is None
    assert coverage(enough) is None


def test_a_figure_without_left_out_times_has_no_coverage() -> None:
    assert coverage({"a": [0.1] * FEWEST_ERRORS}, ["b"]) is None


FITTED = left_out_errors([])


def test_fitted_figures_have_the_errors_of_fits_without_them() -> None:
    """These errors are the shipped ones, whatever this study's are; 4a and 8a have none."""
    assert left_out_errors(times("3a", "3c", "4a", "8a", factor=1.5)) == FITTED
    assert FITTED.keys() == {"3a", "3c"}
    for figure, own in FITTED.items():
        shipped = fitted_figures()[figure].left_out_errors
        assert shipped is not None
        assert [math.expm1(-error) for error in own] == pytest.approx(shipped)


def test_other_figures_have_their_own_errors_each_value_once() -> None:
    result = left_out_errors([*times("8b", factor=1.1), *times("8b", factor=1.1)])
    assert result.pop("8b") == pytest.approx([-math.log(1.1)] * 10)
    assert result == FITTED


@pytest.mark.parametrize(
    ("figure", "device"),
    [("abstract 3a", A100), ("abstract 3b", A100), ("8b", "cuda"), ("8b", "modeled h100")],
)
def test_experiments_that_the_model_cannot_predict_have_no_errors(figure: str, device: str) -> None:
    """Experiments whose settings were not published, measured experiments, other hardware."""
    assert left_out_errors(times(figure, device=device)) == FITTED


def test_a_time_with_a_stall_makes_no_error_and_has_no_interval() -> None:
    stalled = [comparison for comparison in times("4b", factor=2.0) if comparison.point.stalled]
    assert left_out_errors(stalled) == FITTED
    assert all(math.isnan(comparison.expected_low) for comparison in with_intervals(stalled))


def test_the_experiments_of_a_fitted_figure_are_fitted_wherever_they_are_shown() -> None:
    """Figure 8a's stand in the extended abstract's 2a again."""
    again = times("abstract 2a", factor=1.1)
    assert left_out_errors(again) == FITTED
    assert all(
        comparison.expected_low < comparison.expected_high for comparison in with_intervals(again)
    )


def test_an_interval_is_the_same_factor_up_and_down() -> None:
    result = with_intervals([*times("8b", factor=1.02), *times("8b", device="cuda")])
    modeled = [comparison for comparison in result if comparison.device == A100]
    assert len(modeled) == 10
    for one in modeled:
        up, down = one.expected_high / one.as_timed, one.as_timed / one.expected_low
        assert up == pytest.approx(down)
    assert all(
        math.isnan(comparison.expected_low) for comparison in result if comparison.device == "cuda"
    )


def test_a_value_of_zero_or_none_makes_no_error() -> None:
    (first, second, *others) = times("8b")
    changed = [replace(first, as_timed=0.0), replace(second, as_timed=math.nan), *others]
    assert len(left_out_errors(changed)["8b"]) == 8
