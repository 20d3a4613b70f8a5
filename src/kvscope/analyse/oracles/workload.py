"""The oracle of the workload: its requests are those that the settings and the seed give."""

import numpy as np

from kvscope.analyse.oracles.run_tables import RunTables, bad_rows
from kvscope.errors import BadInput
from kvscope.oracle import Violations
from kvscope.plan.experiment import Experiment
from kvscope.workload.requests import build, to_frame

ROUNDING = 1e-12
"""Share by which an arrival may differ: the last digit of a logarithm is the library's."""


def has_all_settings(run: RunTables) -> bool:
    """Whether the settings have all sections, so that the requests can be made of them."""
    needed = {name for name, field in Experiment.model_fields.items() if field.is_required()}
    return needed <= run.records.settings.keys()


def workload_differs(run: RunTables) -> Violations | None:
    """The requests are those that the settings and the seed give: arrivals, prompts and outputs.

    Not applicable where the workload's file is not here.
    """
    try:
        due = to_frame(build(run.records.experiment))
    except BadInput:
        return None
    found = run.records.workload.reset_index(drop=True)
    if len(found) != len(due):
        return Violations(1, f"{len(found)} requests, the settings give {len(due)}")
    columns = ("request_id", "prompt_tokens", "output_tokens")
    wrong = (found[[*columns]] != due[[*columns]]).any(axis=1).to_numpy(copy=True)
    wrong |= ~np.isclose(found["arrival_s"], due["arrival_s"], rtol=ROUNDING, atol=0)
    prompts = zip(found["prompt_token_ids"], due["prompt_token_ids"], strict=True)
    wrong |= [not np.array_equal(one, other) for one, other in prompts]
    return bad_rows(found, wrong, lambda _: "not the request that the settings give")
