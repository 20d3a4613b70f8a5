"""The accesses to the KV cache that Figure 6 shows, as the paper's artifact traced them.

trace.csv is `traced_accesses` of the artifact's kernel traces (github.com/Jye-525/UnBoxKV-IO at
commit 3b0e2e7, kv_write_pattern.json and kv_read_pattern.json), made anew by

    python -m kvscope_paper.published.trace kv_write_pattern.json kv_read_pattern.json

It has the passes of the files' first forty records: of transformer block 0 the writes of F1 and F2
and the reads of F2 and F3.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from kvscope.api.files import files
from kvscope_kernels import kv_events
from kvscope_paper.unboxkv.trace_json import WRITES_KEY, KernelTraces, read_records

FILE = Path(__file__).parent / "trace.csv"
LAYER = 0
# The published unit, "µs", is cycles over 210: of a clock of 1,050 to 1,410 MHz it is too long so
# many times (facts of the A100; the clock of the run was not published).
TOO_LONG = "5 to 7 times"
KEYS = ["pass", "kind", "request", "block"]


def traced_accesses(trace: KernelTraces) -> pd.DataFrame:
    """A row a pass, kind, request and block of LAYER: the first access's `start`, and `duration`.

    Passes and requests count from 1. Both times are in the published unit; those of reads since
    their thread block began, those of writes since the host's launch: none of their starts was
    measured.
    """
    rows = pd.DataFrame(_accesses(trace), columns=[*KEYS, "start", "duration"])
    rows["end"] = rows["start"] + rows["duration"]
    merged = rows.groupby(KEYS, sort=False, as_index=False).agg({"start": "min", "end": "max"})
    return merged.assign(duration=merged["end"] - merged["start"]).drop(columns="end")


def _accesses(trace: KernelTraces) -> Iterator[tuple[int, str, int, int, int, int]]:
    first = trace.passes[0][0]
    for step, layer in trace.passes:
        if layer != LAYER:
            continue
        number = step - first + 1
        if record := trace.writes.get((step, layer)):
            _, scheduled = trace.lengths(step, layer)
            requests = np.repeat(np.arange(len(scheduled)) + 1, scheduled).tolist()
            written = record[WRITES_KEY]
            for kind, (blocks, _) in zip(
                (kv_events.K_WRITE, kv_events.V_WRITE), trace.layout.places(written), strict=True
            ):
                took = written[:, 4].tolist()
                for request, block, duration in zip(requests, blocks.tolist(), took, strict=True):
                    yield number, kv_events.KINDS[kind], request, block, 0, duration
        for kind, name in ((kv_events.K_READ, "k"), (kv_events.V_READ, "v")):
            for request, slots in enumerate(trace.slots(step, layer, name), start=1):
                for start, duration, block in slots[slots[:, 2] >= 0].tolist():
                    yield number, kv_events.KINDS[kind], request, block, start, duration


@cache
def published_accesses() -> pd.DataFrame:
    """The published accesses, as `traced_accesses` gives them."""
    return pd.read_csv(FILE)


def write(paths: Sequence[Path], path: Path = FILE) -> None:
    """Make the file of the artifact's traces; BadInput if they are none."""
    accesses = traced_accesses(KernelTraces.of(*read_records(paths)))
    with files.atomic_path(path) as temporary:
        accesses.to_csv(temporary, index=False)


if __name__ == "__main__":
    write([Path(name) for name in sys.argv[1:]])
