"""Do experiments that must give the same tokens do so? The proof that an overflow loses nothing.

Greedy decoding in float32 of the same requests by the same weights gives the same tokens, whatever
the batching, the cache's size and what overflow did. The repeats of one run may share an
error; another run, which had room, does not.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvscope.analyse.reason import OUTPUTS_DIFFER

DIFFER = OUTPUTS_DIFFER.name
FLOAT32 = "float32"


@dataclass(frozen=True)
class Outputs:
    """One experiment's settings, whether it preempted, and each served request's output hash."""

    settings: Mapping[str, Any]
    preempted: bool
    sha256: pd.Series  # by request_id


@dataclass(frozen=True)
class OutputGroup:
    """Experiments that must agree, by name, those of them that preempted, and what came of it.

    `requests` were served by two of them or more, `differing` of these not with the same tokens.
    """

    names: tuple[str, ...]
    preempted: tuple[str, ...]
    requests: int
    differing: int


def compare_outputs(experiments: Mapping[str, Outputs]) -> list[OutputGroup]:
    """Every group of two experiments or more that must give the same tokens."""
    groups: dict[str, dict[str, Outputs]] = defaultdict(dict)
    for name, one in experiments.items():
        if one.settings.get("model", {}).get("dtype") == FLOAT32:
            groups[_same_tokens(one.settings)][name] = one
    return [_compare_group(group) for group in groups.values() if len(group) > 1]


def _compare_group(group: Mapping[str, Outputs]) -> OutputGroup:
    hashes = pd.concat([one.sha256 for one in group.values()])
    found = hashes.groupby(level=0).agg(["size", "nunique"])
    return OutputGroup(
        names=tuple(group),
        preempted=tuple(name for name, one in group.items() if one.preempted),
        requests=int((found["size"] > 1).sum()),
        differing=int((found["nunique"] > 1).sum()),
    )


def output_hashes(requests: pd.DataFrame) -> pd.Series:
    """By request: the hash of its output tokens in the first repeat that served it."""
    served = requests[~requests["aborted"].astype(bool)].sort_values("repeat")
    hashes: pd.Series = served.groupby("request_id")["output_sha256"].first()
    return hashes


def _same_tokens(settings: Mapping[str, Any]) -> str:
    """The settings that tokens depend on, as text: not when requests arrive or time out."""
    workload = settings.get("workload", {})
    requests = {key: value for key, value in workload.items() if key not in IRRELEVANT_TO_TOKENS}
    device = settings.get("device", {}).get("name")
    return json.dumps(
        [settings.get("model"), settings.get("seed"), requests, device], sort_keys=True
    )


IRRELEVANT_TO_TOKENS = ("arrival", "rate_per_s", "timeout_s", "path", "tokenizer")
"""Settings of a workload that tokens do not depend on; what is in its files is by their hash."""
