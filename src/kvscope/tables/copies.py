"""Kinds of copies between the KV cache and the host, and the fastest copy of each kind.

The measured process computes this of its warm-up, `kvscope check` of the repeats.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvscope.base.time_sources import MODELED
from kvscope.tables.runschema import RunRecord

if TYPE_CHECKING:  # planning, which reads no table, does without
    import pandas as pd

OUT, IN = DIRECTIONS = ("out", "in")
"""To the host, and back to the device."""
KV, INPUTS = KINDS = ("kv", "activations")
"""Contents of a copy: K and V, or the inputs of attention that they can be rebuilt from."""
HOST_CLOCK, DEVICE_CLOCK, VIRTUAL_CLOCK, LOG = CLOCKS = ("host", "device", "virtual", "log")
"""Clocks by which a copy is timed; `log`: a time from a published log."""

FASTEST_BYTES_PER_S = 2e12
"""Upper bound: no host link and no host memory reaches this bandwidth."""

NAMES: Mapping[tuple[str, str], str] = {
    (OUT, KV): "out",
    (IN, KV): "in",
    (IN, INPUTS): "fetch",
    (OUT, INPUTS): "save",
}
"""The name of each kind of copy in run.json."""

Copies = dict[str, dict[str, float]]


def clock_of(record: RunRecord) -> str:
    """The clock by which the copies of a run with this run.json are timed.

    A host that awaits its copies times them itself.
    """
    if record.imported_from:
        return LOG
    if record.time_source == MODELED:
        return VIRTUAL_CLOCK
    return DEVICE_CLOCK if record.engine.copies_awaited is False else HOST_CLOCK


def copies_of(transfers: "pd.DataFrame") -> Copies:
    """`count` and `fastest_bytes_per_s` of the copies of each kind in a `transfers` table.

    In bytes a second of their own time; empty without copies.
    """
    columns = (transfers[name].tolist() for name in ("direction", "kind", "bytes", "copy_s"))
    rates = defaultdict(list)
    for direction, kind, moved, took_s in zip(*columns, strict=True):
        if took_s is not None and 0 < took_s < math.inf:
            rates[direction, kind].append(moved / took_s)
    return {
        name: {"count": len(bytes_per_s), "fastest_bytes_per_s": max(bytes_per_s)}
        for key, name in NAMES.items()
        if (bytes_per_s := rates.get(key))
    }
