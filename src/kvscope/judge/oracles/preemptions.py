"""Oracles of preemptions and resumptions: complete, in the right pass, with the right tokens."""

import math
from functools import cache

import numpy as np

from kvscope.judge.oracles.run_tables import TOLERANCE_S, RunTables, bad_rows
from kvscope.judge.oracles.victims import policy_of
from kvscope.judge.planned import experiment_of
from kvscope.plan.actions import RECOMPUTE
from kvscope.plan.policy import Overflow
from kvscope.tables.oracle import Violations

PREDICTED = ["tokens", "policy", "refused", "predicted_s"]
"""Columns by which a prediction is compared."""


def prediction_wrong(run: RunTables) -> Violations | None:
    """A policy's prediction for a victim follows from the settings, its tokens and the action.

    For a refused victim, the prediction is for some refused action, which is not recomputing. It
    is for some number of requests that run beside the victim or resume with it. Policies that
    predict nothing, or that predict from more than the settings, are not checked.
    """
    if policy_of(run).predictions_s is Overflow.predictions_s:
        return None
    experiment, lost = experiment_of(run.records), run.victims[run.victims["tokens"] > 0]
    overflow, beside = experiment.overflow, range(experiment.engine.max_num_seqs)
    predicted = cache(lambda *of: overflow.predictions_s(experiment, *of))
    wrong = []
    for tokens, action, refused, found_s in lost[PREDICTED].itertuples(index=False, name=None):
        predictions = (predicted(tokens, others) for others in beside)
        due_s = (
            seconds
            for prediction in predictions
            for name, seconds in prediction.items()
            if (name != RECOMPUTE.name if refused else name == action)
        )
        wrong.append(not any(math.isclose(found_s, one_s) for one_s in due_s))
    return bad_rows(
        lost,
        np.array(wrong, bool),
        lambda r: f"predicted_s is {r['predicted_s']}, by the settings {predicted(r['tokens'], 0)}",
    )


def preemption_misplaced(run: RunTables) -> Violations:
    """A request is preempted while its pass is scheduled, or before it while requests wait."""
    victims, steps = run.victims, run.steps
    pass_rows, time_s = run.pass_of(victims), victims["time_s"].to_numpy()
    early = time_s < steps["before_s"].to_numpy()[pass_rows] - TOLERANCE_S
    late = time_s > (steps["start_s"] + steps["schedule_s"]).to_numpy()[pass_rows] + TOLERANCE_S
    return bad_rows(victims, early | late, lambda _: "preempted outside the scheduling of its pass")
