"""Cumulative distributions of many values, at as many points as a plot needs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.base.arraytypes import Floats

POINTS = 400  # of a line
SHORTEST = 1e-6  # in the plot's unit: a logarithmic axis has no 0


@dataclass(frozen=True)
class Distribution:
    """A cumulative distribution: `percent` of the values are at or below `value`."""

    value: Floats
    percent: Floats

    def frame(self) -> pd.DataFrame:
        """Its points as columns `x` and `y`, from 0 % on."""
        return pd.DataFrame(
            {
                "x": np.maximum([self.value[0], *self.value], SHORTEST).round(6),
                "y": np.array([0.0, *self.percent]).round(3),
            }
        )


def distribution(values: npt.NDArray[np.generic]) -> Distribution | None:
    """The distribution at no more than POINTS of the values; None without any."""
    if not len(values):
        return None
    ordered = np.sort(values).astype(np.float64)
    places = np.unique(np.linspace(0, len(ordered) - 1, POINTS).round().astype(np.int64))
    return Distribution(ordered[places], 100 * (places + 1) / len(ordered))
