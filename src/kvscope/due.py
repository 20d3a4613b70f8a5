"""What decoding in a forward pass would have taken anyway, fitted to the passes that only decode.

A pass that decodes reads the weights once, and of every request the newest token and its context:

    due = level · (a + b · decoding requests + c · their context)

a, b and c ≥ 0 are fitted to the plain decode passes of all repeats, robustly (Huber): some passes
are slow for reasons of the machine. Its speed changes from repeat to repeat and within one: the
level is the mean of the nearest plain passes over the mean of what was fitted to them. A mean and
no median, because what is due is added up, and durations are skewed.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from kvscope.arraytypes import Bools, Floats
from kvscope.stalls import MAD_TO_SIGMA

# Plain decode passes around one that show how fast the machine was there and then.
NEAREST = 10
TERMS = ("decodes", "context")
# A coefficient is fitted only to so many passes, or more.
PASSES_A_TERM = 10
# Residuals beyond so many standard deviations count less: Huber's choice, 95 % efficient.
HUBER = 1.345
ITERATIONS = 30
# Repeats' speeds and the coefficients are found in turns.
TURNS = 3
# The plain passes are held out in so many parts, to judge each by the others.
FOLDS = 5


@dataclass(frozen=True)
class DecodeCost:
    """What decoding costs: seconds a pass, a request, and a token of context."""

    constant_s: float
    of_term_s: dict[str, float]

    def fitted_s(self, passes: pd.DataFrame) -> Floats:
        """Seconds of each pass of `decode_passes`, before the machine's speed is taken in."""
        total = np.full(len(passes), self.constant_s)
        for term, cost in self.of_term_s.items():
            total += cost * passes[term].to_numpy(np.float64)
        return total


def plain_decode(steps: pd.DataFrame) -> Bools:
    """Which passes do nothing but decode: none resumed, none preempted, no stall."""
    plain: Bools = (
        (steps["phase"] == "decode")
        & (steps["resumed_requests"] == 0)
        & (steps["preempted_requests"] == 0)
        & ~steps["stalled"].astype(bool)
    ).to_numpy(dtype=bool)
    return plain


def decode_passes(steps: pd.DataFrame, batch: pd.DataFrame) -> pd.DataFrame:
    """Each pass of `steps` as decoding sees it: its place, its duration, and the TERMS.

    `decodes` are requests; `context` is theirs in tokens, from `batch`, or of published passes,
    whose batch is not known, the blocks in use.
    """
    passes = steps[["repeat", "step", "duration_s"]].assign(decodes=steps["decode_tokens"])
    if batch.empty:
        return passes.assign(context=steps["kv_blocks_used"])
    decoding = batch[batch["phase"] == "decode"]
    held = decoding.groupby(["repeat", "step"])["context_tokens"].sum()
    places = pd.MultiIndex.from_frame(steps[["repeat", "step"]])
    return passes.assign(context=held.reindex(places, fill_value=0).to_numpy())


def decode_due_s(steps: pd.DataFrame, batch: pd.DataFrame) -> pd.Series:
    """Seconds that decoding was due to take in each pass of a run, all repeats together.

    0 if the pass decodes nothing; NaN if its repeat has no plain decode pass.
    """
    passes = decode_passes(steps, batch)
    return pd.Series(_due_s(passes[plain_decode(steps)], passes), steps.index)


def held_out_due_s(steps: pd.DataFrame, batch: pd.DataFrame) -> pd.Series:
    """The same of plain decode passes only, each by a fit to others.

    Every FOLDS-th pass is held out together; NaN where no other pass is left.
    """
    plain = decode_passes(steps, batch)[plain_decode(steps)]
    due, fold = np.empty(len(plain)), np.arange(len(plain)) % FOLDS
    for number in range(FOLDS):
        out = fold == number
        due[out] = _due_s(plain[~out], plain[out])
    return pd.Series(due, plain.index)


def fit_decode_cost(plain: pd.DataFrame) -> DecodeCost:
    """The cost fitted to these of `decode_passes`; NaN of no pass.

    A term that is the same in all passes cannot be fitted, nor can several to few passes: they are
    left out, the context first, and in the end what is due is a mean.
    """
    if plain.empty:
        return DecodeCost(np.nan, {})
    varying = [term for term in TERMS if plain[term].nunique() > 1]
    terms = varying[: max(0, len(plain) // PASSES_A_TERM - 1)]
    columns, duration = (plain[of].to_numpy(np.float64) for of in (terms, "duration_s"))
    speed = np.ones(len(plain))
    for _ in range(TURNS):
        constant, *of_terms = _huber(columns, duration / speed)
        cost = DecodeCost(constant, dict(zip(terms, of_terms, strict=True)))
        both = pd.DataFrame({"taken": duration, "fitted": cost.fitted_s(plain)})
        sums = both.groupby(plain["repeat"].to_numpy()).transform("sum")
        speed = (sums["taken"] / sums["fitted"]).to_numpy(np.float64)
    return cost


def _due_s(plain: pd.DataFrame, passes: pd.DataFrame) -> Floats:
    """What is due in some passes, by the plain ones."""
    cost = fit_decode_cost(plain)
    due = np.full(len(passes), np.nan)
    for number in passes["repeat"].unique():
        of_repeat = (passes["repeat"] == number).to_numpy()
        near, there = plain[plain["repeat"] == number].sort_values("step"), passes[of_repeat]
        due[of_repeat] = cost.fitted_s(there) * _level(near, cost.fitted_s(near), there)
    return np.where(passes["decodes"] > 0, due, 0.0)


def _level(plain: pd.DataFrame, fitted_s: Floats, passes: pd.DataFrame) -> Floats:
    """Around each of `passes`: what the NEAREST plain passes took over what was fitted to them.

    Of two equally near the earlier one counts. `plain` are of the same repeat and ascend.
    """
    if plain.empty:
        return np.full(len(passes), np.nan)
    at, wanted = (frame["step"].to_numpy(np.int64) for frame in (plain, passes))
    # The nearest are among the NEAREST before and the NEAREST after.
    window = np.searchsorted(at, wanted)[:, None] + np.arange(-NEAREST, NEAREST)
    index = window.clip(0, len(at) - 1)
    distance = np.where(window != index, np.inf, np.abs(at[index] - wanted[:, None]))
    # Stable: of two equally near, the first in the window, which is the earlier.
    order = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
    known = np.isfinite(np.take_along_axis(distance, order, axis=1))
    nearest = np.take_along_axis(index, order, axis=1)
    taken = (plain["duration_s"].to_numpy(np.float64)[nearest] * known).sum(axis=1)
    level: Floats = taken / (fitted_s[nearest] * known).sum(axis=1)
    return level


def _huber(columns: Floats, values: Floats) -> Floats:
    """Constant and coefficients, none negative, that minimise Huber's loss.

    Least squares again and again, with less weight for what lies far off.
    """
    matrix = np.column_stack([np.ones(len(values)), columns])
    scale = np.abs(matrix).max(axis=0)  # columns of one size, for nnls
    matrix /= scale
    weight = np.ones(len(values))
    found = np.zeros(matrix.shape[1])
    for _ in range(ITERATIONS):
        root = np.sqrt(weight)
        before, found = found, nnls(root[:, None] * matrix, root * values)[0]
        distance = np.abs(values - matrix @ found)
        sigma = MAD_TO_SIGMA * float(np.median(distance))
        if sigma == 0 or np.allclose(found, before, rtol=1e-4, atol=0):
            break
        weight = np.minimum(1.0, HUBER * sigma / np.maximum(distance, 1e-300))
    coefficients: Floats = found / scale
    return coefficients
