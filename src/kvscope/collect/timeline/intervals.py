"""The timeline: everything that was recorded of a run, on the host's clock, by start.

Host rows come from the run's own tables, NVTX ranges and GPU work from the collected ones, moved
by the alignment's offset.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvscope.collect.host_times import duration_ns, instants_ns
from kvscope.collect.nsys.export import BATCH_ROWS
from kvscope.collect.table_writer import write_batches
from kvscope.tables import GPU_KERNELS, GPU_MEMCPYS, NVTX_RANGES, TIMELINE, Table
from kvscope.tables.results import Run

# Strings stay encoded until they are written: millions of rows share few of them.
_ENCODED = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [(c.name, _ENCODED if c.type == pa.string() else c.type) for c in TIMELINE.columns]
)
_ATTRIBUTION = ["repeat", "step", "layer"]


def write_timeline(run: Run, out_dir: Path, offset_ns: int | None) -> int:
    """Write the timeline of a run whose other tables lie in `out_dir`; give its row count.

    Without an offset the profiler's rows have no place on the host's clock and are left out.
    """
    parts = [_repeats(run), _steps(run), _layers(run), _requests(run), _preemptions(run)]
    parts.append(_transfers(run))
    if offset_ns is not None:
        parts += [
            _nvtx(out_dir, offset_ns),
            _gpu(GPU_KERNELS, "kernel", "short_name", out_dir, offset_ns),
            _gpu(GPU_MEMCPYS, "copy", "direction", out_dir, offset_ns),
        ]
    merged = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    order = pc.sort_indices(merged, [("start_ns", "ascending"), ("end_ns", "descending")])
    slices = _slices(merged, order)
    return write_batches(TIMELINE, out_dir, slices, merged.num_rows, ("start_ns", "end_ns"))


def _slices(merged: pa.Table, order: pa.Array) -> Iterator[dict[str, Any]]:
    for first in range(0, len(order), BATCH_ROWS):
        rows = merged.take(order.slice(first, BATCH_ROWS))
        yield dict(zip(rows.column_names, rows.columns, strict=True))


# --- what the host recorded


def _repeats(run: Run) -> pa.Table:
    rows = [(entry.repeat, entry.start_ns, entry.duration_s) for entry in run.record.clock.repeats]
    frame = pd.DataFrame(rows, columns=["repeat", "start_ns", "duration_s"])
    start = frame["start_ns"].to_numpy(np.int64)
    return _part(
        start, start + duration_ns(frame["duration_s"]), "host", "repeat",
        name=[f"repeat {r}" for r in frame["repeat"]], track="repeats", repeat=frame["repeat"],
    )  # fmt: skip


def _steps(run: Run) -> pa.Table:
    steps = run.steps
    start = instants_ns(run, steps["repeat"], steps["start_s"])
    return _part(
        start, start + duration_ns(steps["duration_s"]), "host", "step",
        name=steps["phase"], track="forward passes", repeat=steps["repeat"], step=steps["step"],
    )  # fmt: skip


def _layers(run: Run) -> pa.Table:
    layers = run.layers
    start = instants_ns(run, layers["repeat"], layers["start_s"])
    return _part(
        start, start + duration_ns(layers["duration_s"]), "host", "layer",
        name="layer " + layers["layer"].astype(str), track="layers",
        **{key: layers[key] for key in _ATTRIBUTION},
    )  # fmt: skip


def _requests(run: Run) -> pa.Table:
    """Requests from arrival to the last token; unfinished requests have no interval."""
    requests = run.requests.dropna(subset=["arrival_s", "finished_s"])
    name = "request " + requests["request_id"].astype(str)
    return _part(
        instants_ns(run, requests["repeat"], requests["arrival_s"]),
        instants_ns(run, requests["repeat"], requests["finished_s"]), "host", "request",
        name=name, track=name, repeat=requests["repeat"], request_id=requests["request_id"],
    )  # fmt: skip


def _preemptions(run: Run) -> pa.Table:
    """Preemptions, each from the pass that preempted a request to the pass that resumed it."""
    key = ["repeat", "request_id"]
    steps = run.steps[["repeat", "step", "start_s"]]
    events = run.preemptions.merge(steps, on=["repeat", "step"])
    events = events.sort_values([*key, "step", "event"], kind="stable")
    after = events.groupby(key)[["event", "start_s"]].shift(-1)
    events = events.assign(next_event=after["event"], resumed_s=after["start_s"])
    gaps = events[(events["event"] == "preempt") & (events["next_event"] == "resume")]
    start, end = (instants_ns(run, gaps["repeat"], gaps[end]) for end in ("start_s", "resumed_s"))
    return _part(
        start, end, "host", "preemption",
        name="preempted (" + gaps["policy"].astype(str) + ")",
        track="request " + gaps["request_id"].astype(str),
        repeat=gaps["repeat"], step=gaps["step"], request_id=gaps["request_id"],
    )  # fmt: skip


def _transfers(run: Run) -> pa.Table:
    """Copies between the KV cache and the host; on a GPU, the calls that launch them."""
    copies = run.copies.dropna(subset=["start_s", "end_s"])
    start, end = (instants_ns(run, copies["repeat"], copies[end]) for end in ("start_s", "end_s"))
    return _part(
        start, end, "host", "copy",
        name=copies["kind"].astype(str) + " " + copies["direction"].astype(str),
        track="copies", repeat=copies["repeat"], step=copies["step"],
        request_id=copies["request_id"],
    )  # fmt: skip


# --- what the profiler recorded


def _nvtx(out_dir: Path, offset_ns: int) -> pa.Table:
    rows = _read(NVTX_RANGES, out_dir, ["name", "pid", "tid"])
    track = _join_words("NVTX process", rows["pid"], "thread", rows["tid"])
    return _profiler_part("nvtx", "range", rows, rows["name"], track, offset_ns)


def _gpu(table: Table, kind: str, name: str, out_dir: Path, offset_ns: int) -> pa.Table:
    rows = _read(table, out_dir, [name, "device", "stream"])
    track = _join_words("GPU", rows["device"], "stream", rows["stream"])
    return _profiler_part("gpu", kind, rows, rows[name], track, offset_ns)


def _read(table: Table, out_dir: Path, columns: list[str]) -> pa.Table:
    columns = ["start_ns", "end_ns", *_ATTRIBUTION, *columns]
    return pq.read_table(out_dir / table.file, columns=columns, read_dictionary=columns)


def _join_words(*words: Any) -> pa.ChunkedArray:
    texts = [word if isinstance(word, str) else word.cast(pa.string()) for word in words]
    return pc.binary_join_element_wise(
        *texts, " ", null_handling="replace", null_replacement="unknown"
    )


def _profiler_part(
    source: str, kind: str, rows: pa.Table, name: Any, track: Any, offset_ns: int
) -> pa.Table:
    start, end = (pc.add(rows[column], offset_ns) for column in ("start_ns", "end_ns"))
    attribution = {key: rows[key] for key in _ATTRIBUTION}
    return _part(start, end, source, kind, name=name, track=track, **attribution)


# --- rows of the timeline, strings encoded


def _part(start: Any, end: Any, source: str, kind: str, **others: Any) -> pa.Table:
    values = {"start_ns": start, "end_ns": end, "source": source, "kind": kind, **others}
    columns = [_column(values.get(field.name), field.type, len(start)) for field in _SCHEMA]
    return pa.table(columns, schema=_SCHEMA)


def _column(value: Any, type_: pa.DataType, rows: int) -> pa.Array | pa.ChunkedArray:
    """A column from one text for all rows, from values, or from None for nulls."""
    if value is None:
        return pa.nulls(rows, type_)
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [value])
    if not isinstance(value, pa.Array | pa.ChunkedArray):
        value = pa.array(value, pa.string() if type_ == _ENCODED else type_, from_pandas=True)
    if type_ == _ENCODED and not pa.types.is_dictionary(value.type):
        value = value.dictionary_encode()
    return value.cast(type_)
