"""The profiler's records of kvscope's kernels, compared with the kernels' own time stamps."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvscope.api.tables import tables
from kvscope_kernels import kv_events

NAMES = {kv_events.WRITE: "kvscope_write", kv_events.ATTENTION: "kvscope_attention"}
_PLACE = ["repeat", "step", "layer"]


@dataclass(frozen=True)
class Launches:
    """Intervals of our launches, ns since the run's start, by repeat, step, layer and kernel."""

    frame: pd.DataFrame

    @classmethod
    def read(cls, out_dir: Path, offset_ns: int) -> "Launches | None":
        """Launches of kvscope's kernels in gpu_kernels, on the host's clock; None without any.

        A kernel that is launched in parts counts from the first one's start to the last one's end.
        """
        columns = [*_PLACE, "short_name", "start_ns", "end_ns"]
        is_ours = pc.starts_with(pc.field("short_name"), "kvscope_")
        rows = pq.read_table(out_dir / tables.GPU_KERNELS.file, columns=columns, filters=is_ours)
        frame = rows.to_pandas().dropna(subset=_PLACE)
        parts = []
        for kernel, name in NAMES.items():
            of_kernel = frame[frame["short_name"].str.startswith(name)]
            whole = of_kernel.groupby(_PLACE, as_index=False).agg(
                launch_start=("start_ns", "min"), launch_end=("end_ns", "max")
            )
            parts.append(whole.assign(kernel=kernel))
        launches = pd.concat(parts, ignore_index=True)
        launches[["launch_start", "launch_end"]] += offset_ns
        return cls(launches) if len(launches) else None

    def with_residuals(self, kernels: pd.DataFrame) -> pd.DataFrame:
        """Rows of kv_kernels, with residual_ns from the launch where the profiler has one."""
        both = kernels.merge(self.frame, on=[*_PLACE, "kernel"], how="left", validate="m:1")
        early = both["launch_start"] - both["start_ns"]
        late = both["end_ns"] - both["launch_end"]
        beyond = pd.concat([early, late], axis=1).max(axis=1).clip(lower=0)
        residual = beyond.astype("Int64").fillna(both["residual_ns"])
        return both[kernels.columns].assign(residual_ns=residual)
