"""The forward passes of a run as its profiler saw them."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kvscope.base.ranges import DOMAIN, FORWARD_PASS
from kvscope.collect.nsys.export import NsysExport
from kvscope.collect.nsys.nvtx import NvtxRanges

COLUMNS = ["repeat", "step", "start_ns", "end_ns", "closed"]


def forward_passes(sqlite: Path) -> pd.DataFrame:
    """The ranges of the measured forward passes: repeat, step, and both ends (profiler's clock).

    Raises BadInput if the file is no readable export.
    """
    with NsysExport(sqlite) as export:
        frames = [_own(batch) for batch in NvtxRanges(export).batches()]
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS)
    return rows[rows["closed"].astype(bool)].drop_duplicates(["repeat", "step"])


def _own(batch: dict[str, pa.Array]) -> pd.DataFrame:
    mask = pc.and_(pc.equal(batch["domain"], DOMAIN), pc.equal(batch["name"], FORWARD_PASS))
    frame = pa.table({name: batch[name] for name in COLUMNS}).filter(mask).to_pandas()
    complete: pd.DataFrame = frame.dropna()
    return complete
