"""The time due to decoding in a forward pass, fitted to the passes that only decode.

A decode pass reads the weights once, and for each request its newest token and its context:

    due = level · (a + b · decoding requests + c · their context)

a, b, c ≥ 0 are fitted to the plain decode passes of all repeats with Huber's loss, because the
machine makes some passes slow. The speed of the machine changes between repeats and within one:
`level` is the mean duration of the nearest plain passes divided by the mean of their fitted values.
It is a mean and not a median because due times are summed and durations are skewed.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from kvscope.base.arraytypes import Bools, Floats
from kvscope.tables.stalls import MAD_TO_SIGMA

# Plain decode passes around a pass that determine its level.
NEAREST = 10
TERMS = ("decodes", "context")
# Least passes for each fitted coefficient.
PASSES_A_TERM = 10
# Residuals beyond this many standard deviations have less weight (Huber 1964; 95 % efficiency).
HUBER = 1.345
ITERATIONS = 30
# The speeds of the repeats and the coefficients are estimated in alternation.
TURNS = 3
# Folds of the cross-validation (`held_out_due_s`).
FOLDS = 5


@dataclass(frozen=True)
class DecodeCost:
    """The cost of decoding: seconds per pass, and per unit of each of TERMS."""

    constant_s: float
    of_term_s: dict[str, float]

    def fitted_s(self, passes: pd.DataFrame) -> Floats:
        """Fitted seconds of each pass of `decode_passes`, without the machine's level."""
        total = np.full(len(passes), self.constant_s)
        for term, cost in self.of_term_s.items():
            total += cost * passes[term].to_numpy(np.float64)
        return total


def plain_decode(steps: pd.DataFrame) -> Bools:
    """Whether each pass only decodes: phase decode, nothing resumed or preempted, no stall."""
    plain: Bools = (
        (steps["phase"] == "decode")
        & (steps["resumed_requests"] == 0)
        & (steps["preempted_requests"] == 0)
        & ~steps["stalled"].astype(bool)
    ).to_numpy(dtype=bool)
    return plain


def decode_passes(steps: pd.DataFrame, batch: pd.DataFrame) -> pd.DataFrame:
    """For each pass of `steps`: repeat, step, duration_s, the TERMS of the fit, and `plain`.

    `decodes` is the number of decoding requests. `context` is their context in tokens, from
    `batch`; for published passes, whose batch is not known, it is the blocks in use. `plain` is
    whether the pass only decodes, as `plain_decode`.
    """
    passes = steps[["repeat", "step", "duration_s"]].assign(
        decodes=steps["decode_tokens"], plain=plain_decode(steps)
    )
    if batch.empty:
        return passes.assign(context=steps["kv_blocks_used"])
    decoding = batch[batch["phase"] == "decode"]
    context_tokens = decoding.groupby(["repeat", "step"])["context_tokens"].sum()
    places = pd.MultiIndex.from_frame(steps[["repeat", "step"]])
    return passes.assign(context=context_tokens.reindex(places, fill_value=0).to_numpy())


def decode_due_s(passes: pd.DataFrame, of: pd.DataFrame | None = None) -> pd.Series:
    """Seconds due to decoding in each of some passes; `passes` holds those of all repeats.

    Both are rows of `decode_passes`; None is all. 0 if a pass decodes no request; NaN if its repeat
    has no plain decode pass.
    """
    asked = passes if of is None else of
    return pd.Series(_due_s(passes[passes["plain"]], asked), asked.index)


def held_out_due_s(passes: pd.DataFrame) -> pd.Series:
    """`decode_due_s` of the plain decode passes, cross-validated.

    Each pass is predicted by a fit to the passes outside its fold; fold k holds the passes k,
    k + FOLDS, …. NaN if no other pass is left.
    """
    plain = passes[passes["plain"]]
    due_s, fold = np.empty(len(plain)), np.arange(len(plain)) % FOLDS
    for number in range(FOLDS):
        out = fold == number
        due_s[out] = _due_s(plain[~out], plain[out])
    return pd.Series(due_s, plain.index)


def fit_decode_cost(plain: pd.DataFrame) -> DecodeCost:
    """Fit the cost to plain passes (rows of `decode_passes`); NaN without any.

    Terms that do not vary are left out. With few passes, further terms are left out, the context
    first; without any term, the fitted cost is a mean.
    """
    if plain.empty:
        return DecodeCost(np.nan, {})
    varying = [term for term in TERMS if plain[term].nunique() > 1]
    terms = varying[: max(0, len(plain) // PASSES_A_TERM - 1)]
    columns, duration = (plain[names].to_numpy(np.float64) for names in (terms, "duration_s"))
    speed = np.ones(len(plain))
    for _ in range(TURNS):
        constant, *of_terms = _huber(columns, duration / speed)
        cost = DecodeCost(constant, dict(zip(terms, of_terms, strict=True)))
        if plain["repeat"].nunique() == 1:
            break  # `_level` has its speed
        frame = pd.DataFrame({"taken": duration, "fitted": cost.fitted_s(plain)})
        sums = frame.groupby(plain["repeat"].to_numpy()).transform("sum")
        speed = (sums["taken"] / sums["fitted"]).to_numpy(np.float64)
    return cost


def _due_s(plain: pd.DataFrame, passes: pd.DataFrame) -> Floats:
    """Seconds due in each of `passes`, predicted from the `plain` passes."""
    cost = fit_decode_cost(plain)
    due_s = np.full(len(passes), np.nan)
    for number in passes["repeat"].unique():
        of_repeat = (passes["repeat"] == number).to_numpy()
        near, part = plain[plain["repeat"] == number].sort_values("step"), passes[of_repeat]
        due_s[of_repeat] = cost.fitted_s(part) * _level(near, cost.fitted_s(near), part)
    return np.where(passes["decodes"] > 0, due_s, 0.0)


def _level(plain: pd.DataFrame, fitted_s: Floats, passes: pd.DataFrame) -> Floats:
    """For each of `passes`: duration of the NEAREST plain passes over their fitted seconds.

    `plain` has passes of the same repeat in ascending order. Of two equally near passes, the
    earlier one counts.
    """
    if plain.empty:
        return np.full(len(passes), np.nan)
    plain_steps, steps = (frame["step"].to_numpy(np.int64) for frame in (plain, passes))
    # The nearest are among the NEAREST before and the NEAREST after.
    window = np.searchsorted(plain_steps, steps)[:, None] + np.arange(-NEAREST, NEAREST)
    index = window.clip(0, len(plain_steps) - 1)
    distance = np.where(window != index, np.inf, np.abs(plain_steps[index] - steps[:, None]))
    # Stable: of two equally near, the first in the window, which is the earlier.
    order = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
    mask = np.isfinite(np.take_along_axis(distance, order, axis=1))
    nearest = np.take_along_axis(index, order, axis=1)
    taken = (plain["duration_s"].to_numpy(np.float64)[nearest] * mask).sum(axis=1)
    level: Floats = taken / (fitted_s[nearest] * mask).sum(axis=1)
    return level


def _huber(columns: Floats, values: Floats) -> Floats:
    """Constant and coefficients, none negative, that minimise Huber's loss.

    By iteratively reweighted least squares, whose triangle of the QR decomposition has the same
    solution as all rows.
    """
    matrix = np.column_stack([np.ones(len(values)), columns])
    scale = np.abs(matrix).max(axis=0)  # columns of one size, for nnls
    matrix /= scale
    weight = np.ones(len(values))
    solution = np.zeros(matrix.shape[1])
    for _ in range(ITERATIONS):
        root = np.sqrt(weight)
        rows = root[:, None] * np.column_stack([matrix, values])
        triangle = np.asarray(np.linalg.qr(rows, mode="r"))
        before, solution = solution, nnls(triangle[:, :-1], triangle[:, -1])[0]
        distance = np.abs(values - matrix @ solution)
        sigma = MAD_TO_SIGMA * float(np.median(distance))
        if sigma == 0 or np.allclose(solution, before, rtol=1e-4, atol=0):
            break
        weight = np.minimum(1.0, HUBER * sigma / np.maximum(distance, 1e-300))
    coefficients: Floats = solution / scale
    return coefficients
