"""Compare the output tokens of experiments that must agree: preemption must not change tokens.

Greedy decoding in float32 gives the same tokens for the same requests and weights, independent of
batching, cache size and overflow policy. Repeats of one run may share an error; a run without
preemptions does not have it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvscope.judge.reason import OUTPUTS_DIFFER

DIFFER = OUTPUTS_DIFFER.name
FLOAT32 = "float32"


@dataclass(frozen=True)
class Outputs:
    """An experiment's settings, whether it preempted, and output hashes of its served requests.

    `rehearsed`: a CPU computed in the place of its GPU, whose tokens may be others.
    """

    settings: Mapping[str, Any]
    preempted: bool
    sha256: Callable[[], pd.Series]  # by request_id; read only of those that are compared
    rehearsed: bool = False


@dataclass(frozen=True)
class OutputGroup:
    """Experiments that must agree, by name, and those of them that preempted.

    `requests` is the number of requests that at least two of them served; `differing` is how many
    of these have different tokens.
    """

    names: tuple[str, ...]
    preempted: tuple[str, ...]
    requests: int
    differing: int


def compare_outputs(experiments: Mapping[str, Outputs]) -> list[OutputGroup]:
    """Compare every group of at least two experiments that must give the same tokens."""
    groups: dict[str, dict[str, Outputs]] = defaultdict(dict)
    for name, outputs in experiments.items():
        if outputs.settings.get("model", {}).get("dtype") == FLOAT32:
            groups[_same_tokens(outputs)][name] = outputs
    return [_compare_group(group) for group in groups.values() if len(group) > 1]


def _compare_group(group: Mapping[str, Outputs]) -> OutputGroup:
    hashes = pd.concat([outputs.sha256() for outputs in group.values()])
    counts = hashes.groupby(level=0).agg(["size", "nunique"])
    return OutputGroup(
        names=tuple(group),
        preempted=tuple(name for name, outputs in group.items() if outputs.preempted),
        requests=int((counts["size"] > 1).sum()),
        differing=int((counts["nunique"] > 1).sum()),
    )


def output_hashes(requests: pd.DataFrame) -> pd.Series:
    """Hash of the output tokens in the first repeat that served a request, by `request_id`.

    Where the workload's tokens came out, of those that the model would have given.
    """
    served = requests[~requests["aborted"].astype(bool)].sort_values("repeat")
    chosen = served["chosen_sha256"].fillna(served["output_sha256"])
    hashes: pd.Series = chosen.groupby(served["request_id"]).first()
    return hashes


def _same_tokens(one: Outputs) -> str:
    """Settings that tokens depend on, as text, without arrivals and timeouts."""
    settings = one.settings
    workload = settings.get("workload", {})
    requests = {key: value for key, value in workload.items() if key not in IRRELEVANT_TO_TOKENS}
    device = settings.get("device", {}).get("name")
    parts = [settings.get("model"), settings.get("seed"), requests, device, one.rehearsed]
    return json.dumps(parts, sort_keys=True)


IRRELEVANT_TO_TOKENS = ("arrival", "rate_per_s", "timeout_s", "path", "tokenizer")
"""Workload settings without effect on tokens; files count by the hash of their content."""
