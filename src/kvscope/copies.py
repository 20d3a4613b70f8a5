"""Kinds of copies between the KV cache and the host pool, and how fast the fastest of each was.

The measured process computes this of its warm-up, `kvscope check` of the repeats.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from kvscope.actions import rebuilds_blocks

Copies = dict[str, dict[str, float]]


def copies_of(preemptions: pd.DataFrame, steps: pd.DataFrame) -> Copies:
    """`count` and `fastest_bytes_per_s` of the copies of each kind that the tables have.

    Kinds are `out`, `in`, `fetch` (activations to the device) and `save`, in bytes a second of
    their own time; empty without copies.
    """
    return {
        kind: {"count": len(rates), "fastest_bytes_per_s": float(rates.max())}
        for kind, rates in _rates(preemptions, steps)
        if len(rates)
    }


def _rates(preemptions: pd.DataFrame, steps: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    rebuilds = rebuilds_blocks(preemptions["policy"])
    moved = preemptions["bytes"]
    yield "out", _rate(moved, preemptions["swap_out_s"])
    yield "in", _rate(moved[~rebuilds], preemptions["swap_in_s"][~rebuilds])
    yield "fetch", _rate(moved[rebuilds], preemptions["swap_in_s"][rebuilds])
    yield "save", _rate(steps["saved_bytes"], steps["save_s"])


def _rate(moved: pd.Series, seconds: pd.Series) -> pd.Series:
    took = seconds.astype(float)
    known = (took > 0) & np.isfinite(took)
    return moved[known].astype(float) / took[known]
