"""The oracle of the workload: its requests are those that the settings and the seed give."""

import numpy as np

from kvscope.analyse.oracles.run_tables import RunTables, bad_rows, differ
from kvscope.errors import BadInput
from kvscope.oracle import Violations
from kvscope.plan.experiment import Experiment
from kvscope.tables import WORKLOAD
from kvscope.workload.requests import build, to_frame

ROUNDING = 1e-12
"""Share by which a time may differ: the last digit of a logarithm is the library's."""
ROUNDED = ("arrival_s", "think_s")
LISTS = ("prompt_token_ids", "output_token_ids", "after")
EXACT = tuple(name for name in WORKLOAD.names if name not in (*ROUNDED, *LISTS))


def has_all_settings(run: RunTables) -> bool:
    """Whether the settings have all sections, so that the requests can be made of them."""
    needed = {name for name, field in Experiment.model_fields.items() if field.is_required()}
    return needed <= run.records.settings.keys()


def workload_differs(run: RunTables) -> Violations | None:
    """The requests are those that the settings and the seed give: arrivals, prompts and outputs.

    And what each follows, and the tokens that must come out.

    Not applicable where the workload's file is not here.
    """
    try:
        due = to_frame(build(run.records.experiment))
    except BadInput:
        return None
    found = run.records.workload.reset_index(drop=True)
    if len(found) != len(due):
        return Violations(1, f"{len(found)} requests, the settings give {len(due)}")
    wrong = np.zeros(len(due), bool)
    for column in EXACT:
        wrong |= differ(found[column], due[column])
    for column in ROUNDED:
        found_s, due_s = (frame[column].astype(float) for frame in (found, due))
        wrong |= ~np.isclose(found_s, due_s, rtol=ROUNDING, atol=0, equal_nan=True)
    for column in LISTS:
        pairs = zip(found[column], due[column], strict=True)
        wrong |= [not np.array_equal(one, other) for one, other in pairs]
    return bad_rows(found, wrong, lambda _: "not the request that the settings give")
