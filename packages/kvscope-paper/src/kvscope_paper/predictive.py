"""Interval of an expected published time, from the model's errors elsewhere.

The errors of a figure are of times that the cost model's numbers were not fitted on: of a fitted
figure those of a fit to the other fitted figures, of any other its own. The interval of a figure is
made from the errors in all other figures, so that its own published values can test it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvscope_paper.agreement import CORRECTED, FITTED, PREDICTED
from kvscope_paper.comparison import Comparison, distinct
from kvscope_paper.published.fitted import fitted_figures

SHARE = 0.95  # of published times that are expected within the interval
# Fewer errors do not tell where 95 % of them are.
FEWEST_ERRORS = 20
HARDWARE = "a100-40gb"
OF_TIME = ("s", "tokens/s")  # units of values that the cost model decides; counts it does not

Errors = Mapping[str, Sequence[float]]


def is_modeled_time(one: Comparison) -> bool:
    """True if a published time, or throughput, has a value of the modeled A100 beside it."""
    of_a100 = one.device == f"modeled {HARDWARE}"
    return of_a100 and one.unit in OF_TIME and not math.isnan(one.as_timed)


def left_out_errors(found: Iterable[Comparison]) -> dict[str, list[float]]:
    """Errors of what no number was fitted on, by figure: logarithms of published over ours.

    Of fitted figures they are those of a fit to the others, where these tell, whatever `found` has
    of them. Neither times
    with a stall of the host nor experiments with unpublished settings are the model's to predict.
    """
    errors = {
        figure: [-math.log1p(error) for error in fit.left_out_errors]
        for figure, fit in fitted_figures().items()
        if fit.left_out_errors is not None
    }
    for comparison in distinct(found):
        if _is_predictable(comparison) and comparison.kind is not FITTED:
            error = math.log(comparison.point.value / comparison.as_timed)
            errors.setdefault(comparison.point.table.figure, []).append(error)
    return errors


def _is_predictable(comparison: Comparison) -> bool:
    """True if the model could have predicted a published time that is not 0."""
    of_model = (
        comparison.kind in (PREDICTED, CORRECTED, FITTED) and not comparison.point.table.unpublished
    )
    return is_modeled_time(comparison) and of_model and comparison.as_timed > 0


def spread(errors: Errors, figure: str | None = None) -> float | None:
    """The size that 95 % of the errors of all figures but this one stay within, as a logarithm.

    None with fewer than FEWEST_ERRORS. It is the quantile at the place 0.95 (n + 1) of the sorted
    sizes, below which one more exchangeable error falls with a probability of 95 %: split conformal
    prediction (Lei et al., Distribution-Free Predictive Inference for Regression, JASA 113, 2018).
    """
    others = [
        abs(error) for name, of_figure in errors.items() if name != figure for error in of_figure
    ]
    if len(others) < FEWEST_ERRORS:
        return None
    return float(np.quantile(others, SHARE, method="weibull"))


def with_intervals(found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons, those of modeled times with the interval in which they are expected."""
    errors = left_out_errors(found)
    spreads = {figure: spread(errors, figure) for figure in {c.point.table.figure for c in found}}
    return [
        _with_interval(comparison, spreads[comparison.point.table.figure]) for comparison in found
    ]


def _with_interval(comparison: Comparison, size: float | None) -> Comparison:
    if size is None or not _is_predictable(comparison):
        return comparison
    low, high = (comparison.as_timed * math.exp(sign * size) for sign in (-1, 1))
    return replace(comparison, expected_low=low, expected_high=high)


@dataclass(frozen=True)
class Coverage:
    """Coverage of the left-out times of some figures by their intervals.

    `median_width` is that of the intervals as a share of the predicted time, `error_95` the size
    that 95 % of the left-out errors stay within, as a share of it, too.
    """

    times: int
    held: int
    median_width: float
    error_95: float

    @property
    def share(self) -> float:
        """The share of the times that their intervals hold."""
        return self.held / self.times


def coverage(errors: Errors, figures: Iterable[str] | None = None) -> Coverage | None:
    """The coverage of these figures' intervals, or of all; None where there is no interval."""
    covered, widths, sizes = 0, [], []
    for figure in errors if figures is None else figures:
        size = spread(errors, figure)
        if size is None:
            return None
        of_figure = errors.get(figure, ())
        covered += sum(abs(error) <= size for error in of_figure)
        widths += [2 * math.sinh(size)] * len(of_figure)
        sizes += [math.expm1(abs(error)) for error in of_figure]
    if not sizes:
        return None
    error_95 = float(np.quantile(sizes, SHARE))
    return Coverage(len(sizes), covered, float(np.median(widths)), error_95)
