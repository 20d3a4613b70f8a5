"""The A100's constants are those of the fit to the published times."""

from statistics import median

import pytest

from kvscope_model.calibration.calibrate import Calibration
from kvscope_model.hardware import hardware as data
from kvscope_paper.published import times as published
from kvscope_paper.published.cold_start import MOST_S, REQUEST_S, SLOWER_SHARE, TOKEN_S
from kvscope_paper.published.fitted import fitted_figures

SAME = 1e-3  # of numbers with four digits


@pytest.fixture(scope="module")
def again() -> Calibration:
    """The published calibration, made again with one bootstrap sample."""
    return published.TIMES.calibrate(samples=1)


def test_the_shipped_numbers_are_those_of_the_fit(again):
    shipped = data.read("a100-40gb")
    for name, value in again.constants.items():
        assert getattr(shipped, name) == pytest.approx(value, rel=SAME), name
        assert shipped.bootstrap[0][name] == pytest.approx(again.bootstrap[0][name], rel=SAME), name
    cold = (SLOWER_SHARE, MOST_S, TOKEN_S, REQUEST_S)
    names = ("cold_share", "cold_most_s", "tokenisation_s", "call_s")
    assert cold == pytest.approx([again.fit.values[name] for name in names], rel=SAME)


def test_a_single_rate_is_fitted_for_copies_in_both_directions():
    shipped = data.read("a100-40gb")
    for numbers in (shipped.model_dump(), *shipped.bootstrap):
        for memory in ("pinned", "pageable"):
            assert numbers[f"{memory}_in_bytes_per_s"] == numbers[f"{memory}_out_bytes_per_s"]


def test_the_shipped_errors_are_those_of_the_fit(again):
    shipped, result = fitted_figures(), published.errors_of(again)
    assert shipped.keys() == result.keys() == {*published.FIGURES}
    for figure, one in shipped.items():
        numbers = one.model_dump(exclude_none=True)
        again_numbers = result[figure].model_dump(exclude_none=True)
        errors = numbers.pop("left_out_errors", [])
        assert again_numbers.pop("left_out_errors", []) == pytest.approx(errors, abs=SAME)
        assert again_numbers == pytest.approx(numbers, rel=SAME)


def test_the_median_of_left_out_errors_is_that_of_all_times():
    for errors in fitted_figures().values():
        assert (errors.left_out is None) == (errors.left_out_errors is None)
        if errors.left_out_errors is not None:
            assert len(errors.left_out_errors) == errors.times
            assert errors.left_out == pytest.approx(
                median(map(abs, errors.left_out_errors)), rel=SAME
            )


def test_copies_and_the_chunked_kernel_are_told_by_their_own_figures_alone():
    told = {figure for figure, one in fitted_figures().items() if one.left_out is not None}
    assert told == {"3a", "3c"}


@pytest.mark.parametrize(
    ("figure", "most"), [("3a", 0.03), ("3c", 0.03), ("4a", 0.02), ("8a", 0.015)]
)
def test_the_numbers_fit_the_figures_that_they_are_from(figure: str, most: float):
    assert fitted_figures()[figure].median_error <= most


def test_each_fitted_figure_has_as_many_times_as_it_shows():
    counts: dict[str, int] = {}
    for observation in published.observations():
        counts[observation.group] = counts.get(observation.group, 0) + 1
    assert counts == {"3a": 119, "3c": 30, "4a": 20, "8a": 18}
