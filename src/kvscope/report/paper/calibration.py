"""The published calibration: what it is fitted to, and how well it predicts what it is not."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvscope.plan.hardware import hardware as data
from kvscope.plan.published.left_out import left_out_errors
from kvscope.report.paper.comparison import Comparison, by_figure

HARDWARE = "a100-40gb"
OF_TIME = ("s", "tokens/s")  # units of values that the cost model decides; counts it does not
PERCENTILES = (2.5, 97.5)


def figure_errors(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Errors of the modeled A100 for each published table of times, as `by_figure` has them.

    `fitted`: its numbers are fitted on the figure; `left_out` is then the median error of the
    figure's times by a fit to the other figures, else None.
    """
    own = [
        one
        for one in found
        if one.device == f"modeled {HARDWARE}"
        and one.unit in OF_TIME
        and one.as_timed == one.as_timed
    ]
    left_out = left_out_errors()
    return [
        figure | {"fitted": (name := figure["figure"]) in left_out, "left_out": left_out.get(name)}
        for figure in by_figure(own)
    ]


def fitted_numbers() -> Iterator[tuple[str, float, float, float]]:
    """Name and value of each fitted number of the A100, and the ends of its interval.

    The interval is that of 95 % of the fits to bootstrap samples.
    """
    hardware = data.read(HARDWARE)
    for name in hardware.bootstrap[0]:
        low, high = np.percentile([one[name] for one in hardware.bootstrap], PERCENTILES)
        yield name, getattr(hardware, name), float(low), float(high)
