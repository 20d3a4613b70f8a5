"""What the decode in a forward pass would have taken anyway, judged by the passes around it."""

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Passes around one that tell what decoding took there and then.
NEAREST = 10


def plain_decode(steps: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which passes do nothing but decode: none resumed, none preempted, no stall."""
    plain: npt.NDArray[np.bool_] = (
        (steps["phase"] == "decode")
        & (steps["resumed_requests"] == 0)
        & (steps["preempted_requests"] == 0)
        & ~steps["stalled"].astype(bool)
    ).to_numpy(dtype=bool)
    return plain


def decode_due_s(steps: pd.DataFrame, asked: npt.NDArray[np.bool_]) -> Floats:
    """Seconds that decoding was due to take in each `asked` pass of one repeat's `steps`.

    0 if the pass decodes nothing; otherwise the median duration of the NEAREST plain decode
    passes by step number, the earlier of two equally near; NaN if the repeat has none.
    """
    plain = steps.loc[plain_decode(steps), ["step", "duration_s"]].sort_values("step")
    passes = steps.loc[asked]
    due = _nearest_median(
        plain["step"].to_numpy(np.int64),
        plain["duration_s"].to_numpy(np.float64),
        passes["step"].to_numpy(np.int64),
    )
    return np.where(passes["decode_tokens"].to_numpy() > 0, due, 0.0)


def _nearest_median(at: Ints, values: Floats, wanted: Ints) -> Floats:
    """For each wanted place, the median of the NEAREST values; `at` ascends."""
    if not len(at):
        return np.full(len(wanted), np.nan)
    # The nearest are among the NEAREST before and the NEAREST after.
    window = np.searchsorted(at, wanted)[:, None] + np.arange(-NEAREST, NEAREST)
    index = window.clip(0, len(at) - 1)
    outside = window != index
    distance = np.where(outside, np.inf, np.abs(at[index] - wanted[:, None]))
    # Stable: of two equally near, the first in the window, which is the earlier.
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
    found = np.where(outside, np.nan, values[index])
    median: Floats = np.nanmedian(np.take_along_axis(found, nearest, axis=1), axis=1)
    return median
