"""Shape classes of forward passes, and stalls: passes much longer than others of their class.

The shape class is what the duration of a pass should depend on: the tokens that it prefills, the
requests that it decodes, and the tokens in the cache, each rounded to a power of two. Warm-up must
cover every class that is measured. A pass that preempts or resumes may also copy blocks, so it is
compared only with passes that do the same.
"""

import numpy as np
import pandas as pd

from kvscope.base.arraytypes import Bools, Int64s

# A pass is stalled if it exceeds both: this many times the median of its class …
STALL_RATIO = 3.0
# … and the median by this many (robust) standard deviations.
STALL_DEVIATIONS = 10.0
# A class of fewer passes has no reliable median, and no stalls.
MINIMUM_CLASS = 5
# Standard deviation of a normal distribution / its median absolute deviation.
MAD_TO_SIGMA = 1.4826


def power_class(count: Int64s) -> Int64s:
    """0 for 0, otherwise 1 + ⌊log2(count)⌋: counts within a factor of two share a class."""
    return np.where(count > 0, 1 + np.floor(np.log2(np.maximum(count, 1))), 0).astype(np.int64)


def shape_classes(steps: pd.DataFrame) -> pd.Series:
    """The shape class of every pass of a `steps` table, e.g. 'p9-d4-c12'.

    p: prefilled tokens, d: decoded tokens, c: tokens in the cache, 0 where they are not known (in
    imports); as `power_class`.
    """
    names = [f"p{p}-d{d}-c{c}" for p, d, c in _classes(steps).tolist()]
    return pd.Series(names, steps.index, str)


def _classes(steps: pd.DataFrame) -> Int64s:
    """The three numbers of the shape class of every pass, one row a pass."""
    columns = (steps[name] for name in ("prefill_tokens", "decode_tokens", "kv_tokens_used"))
    counts = [column.fillna(0).to_numpy(np.int64) for column in columns]
    return power_class(np.column_stack(counts))


def uncovered_classes(measured: pd.DataFrame, warm_up: pd.DataFrame) -> list[str]:
    """Shape classes of measured passes that no pass of the warm-up had, sorted."""
    return sorted(set(shape_classes(measured)) - set(shape_classes(warm_up)))


def comparison_groups(steps: pd.DataFrame) -> Int64s:
    """The number of each pass's group: by shape class, and whether it preempts or resumes."""
    moves = (steps[name] > 0 for name in ("preempted_requests", "resumed_requests"))
    keys = np.column_stack([_classes(steps), *moves])
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def usual_s(steps: pd.DataFrame) -> pd.Series:
    """The usual duration of each pass: the median of its `comparison_groups`, in seconds.

    `steps` holds the passes of all repeats: compared with its own passes only, a repeat that is
    slow throughout would look normal.
    """
    usual: pd.Series = steps["duration_s"].groupby(comparison_groups(steps)).transform("median")
    return usual


def find_stalls(steps: pd.DataFrame) -> Bools:
    """Whether each pass of a `steps` table of all repeats is a stall: a boolean array."""
    if steps.empty:
        return np.zeros(0, dtype=bool)
    duration, group = steps["duration_s"], comparison_groups(steps)
    usual = duration.groupby(group).transform("median")
    sigma = MAD_TO_SIGMA * (duration - usual).abs().groupby(group).transform("median")
    large_enough = np.bincount(group)[group] >= MINIMUM_CLASS
    beyond = (duration > STALL_RATIO * usual) & (duration > usual + STALL_DEVIATIONS * sigma)
    flags: Bools = (beyond & large_enough).to_numpy(dtype=bool)
    return flags
