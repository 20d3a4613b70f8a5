"""The GPU's KV cache and the host's in use over time, as published with Figure 11.

cache_use.csv is `thinned_use` of the artifact's series (github.com/Jye-525/UnBoxKV-IO at commit
3b0e2e7, plots_script/util_csv_recmp_swap), made anew by

    python -m kvscope_paper.published.cache_use 11a=Q4_a_16K 11b=Q4_e_g50 11c=Q4_diff_models

in that directory; a directory holds recmp_….csv and swap_….csv, and beside them their step series.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from kvscope.api.files import files
from kvscope_paper.arrays import Floats, Int64s
from kvscope_paper.unboxkv.series_csv import read_series

FILE = Path(__file__).parent / "cache_use.csv"
GPU, HOST = "GPU", "host"  # whose memory
COLUMNS = {GPU: "kv_percent", HOST: "host_percent"}  # of a published series
POLICIES = {"recmp": "recompute", "swap": "swap"}  # by the beginning of a file's name
SPANS = 200  # a plot of one column has about as many pixels; each keeps two points


def thin(at_s: Floats, values: Floats, spans: int = SPANS) -> Int64s:
    """Indices of a series' points to draw: at most two in each of equal `spans` of time.

    They are the span's smallest and largest value, so that a line through them covers what one
    through all points covers, but for less than a span; and the first and the last point.
    """
    if not len(at_s):
        return np.empty(0, np.int64)
    width_s = max((at_s[-1] - at_s[0]) / spans, np.finfo(float).tiny)
    span = np.minimum(((at_s - at_s[0]) / width_s).astype(int), spans - 1)
    by_span = pd.Series(values).groupby(span)
    kept = {0, len(at_s) - 1, *by_span.idxmin(), *by_span.idxmax()}
    return np.array(sorted(kept), np.int64)


def thinned_use(figure: str, policy: str, series: pd.DataFrame) -> pd.DataFrame:
    """Rows of cache_use.csv for one published run, `series` as `read_series` gives it.

    Shares in percent after each pass, at seconds since the run began; none of a host that is never
    used.
    """
    at_s = series["elapsed_ms"].to_numpy(float) / 1e3
    parts = []
    for memory, column in COLUMNS.items():
        percent = series[column].to_numpy(float)
        if not percent.any():
            continue
        kept = thin(at_s, percent)
        shown = {"at_s": at_s[kept].round(2), "percent": percent[kept].round(1)}
        parts.append(pd.DataFrame({"figure": figure, "policy": policy, "memory": memory, **shown}))
    return pd.concat(parts, ignore_index=True)


@cache
def published_use() -> pd.DataFrame:
    """All published runs: a row a point."""
    return pd.read_csv(FILE)


def write(directories: Sequence[str], path: Path = FILE) -> None:
    """Make the file of `FIGURE=DIRECTORY` with the artifact's series; BadInput if they are none."""
    parts = []
    for figure, _, directory in (given.partition("=") for given in directories):
        for beginning, policy in POLICIES.items():
            paths = sorted(Path(directory).glob(f"{beginning}_*.csv"))
            parts.append(thinned_use(figure, policy, read_series(paths, None)))
    with files.atomic_path(path) as temporary:
        pd.concat(parts).to_csv(temporary, index=False)


if __name__ == "__main__":
    write(sys.argv[1:])
