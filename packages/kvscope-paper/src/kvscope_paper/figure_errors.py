"""The published calibration: what it is fitted to, and how well it predicts what it is not."""

from collections.abc import Sequence
from typing import Any

from kvscope_paper.comparison import Comparison, by_figure
from kvscope_paper.published.fitted import fitted_figures

HARDWARE = "a100-40gb"
OF_TIME = ("s", "tokens/s")  # units of values that the cost model decides; counts it does not


def figure_errors(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Errors of the modeled A100 for each published table of times, as `by_figure` has them.

    `fitted`: its numbers are fitted on the figure; `left_out` is then the median error of the
    figure's times by a fit to the other figures, else None, and where these do not tell.
    """
    own = [
        one
        for one in found
        if one.device == f"modeled {HARDWARE}"
        and one.unit in OF_TIME
        and one.as_timed == one.as_timed
    ]
    fitted = fitted_figures()
    return [
        figure | {"fitted": own_fit is not None, "left_out": own_fit and own_fit.left_out}
        for figure in by_figure(own)
        for own_fit in [fitted.get(figure["figure"])]
    ]
