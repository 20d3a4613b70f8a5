"""From what the kernels recorded to `kernel_events.jsonl.zst`: one JSON object a (pass, layer).

Done between repeats, outside of anything that is timed. docs/TRACE_SPEC.md defines the object.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from kvscope.engine.attention.events import ALL_HEADS, VERSION
from kvscope.engine.attention.tracer import TracedKernel, TracedPass, Tracer
from kvscope.engine.recording import PassRecord, Recording
from kvscope.plan.experiment import Experiment
from kvscope.run.recorder import Repeat, external_id
from kvscope.runfile import KERNEL_EVENTS

Events = npt.NDArray[Any]
COMPRESSION_LEVEL = 3


OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


class KernelEvents:
    """A run's KV events: writes those of each repeat and counts them; none without a tracer."""

    def __init__(self, experiment: Experiment, tracer: Tracer | None, directory: Path) -> None:
        self.tracing, self.block_size = experiment.tracing, experiment.cache.block_size
        self.tracer = tracer
        self.path = directory / KERNEL_EVENTS
        self.samples: list[Any] = []  # of the tracer's clock
        self.events = self.dropped = self.passes = 0

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep the events of the passes inside until the next time; read clocks at both ends."""
        if self.tracer is None:
            yield
            return
        self.tracer.clear()
        self.samples.append(self.tracer.clock.sample())
        yield
        self.samples.append(self.tracer.clock.sample())

    def write(self, number: int, recording: Recording, repeat: Repeat) -> None:
        """Append a repeat's events to the file."""
        if self.tracer is None:
            return
        rows = dict(iter(repeat.batch.groupby("step")))
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        with (
            self.path.open("ab") as file,
            compressor.stream_writer(file, closefd=False) as out,
        ):
            for traced in self.tracer.passes:
                batch = described(recording.passes[traced.step], rows[traced.step])
                batch |= {"repeat": number, "step": traced.step, "block_size": self.block_size}
                for flush in self._flushes(self.tracer, traced, batch):
                    out.write(orjson.dumps(flush, option=OPTIONS))
        self.passes += len(self.tracer.passes)

    def _flushes(
        self, tracer: Tracer, traced: TracedPass, batch: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The objects of one traced pass, layer by layer."""
        segments = tracer.events(traced)
        nothing = np.zeros(tracer.workers, np.int64)
        used, dropped = nothing, nothing
        for layer, kernels in groupby(traced.kernels, key=lambda kernel: kernel.layer):
            parts = []
            for kernel in kernels:
                parts.append(Part(kernel, segments, used, dropped))
                used, dropped = kernel.used, kernel.dropped
            self.events += sum(part.count for part in parts)
            self.dropped += sum(int(part.dropped.sum()) for part in parts)
            head = {
                "version": VERSION,
                "layer": layer,
                "tile_tokens": tracer.tile_tokens,
                "kv_heads": tracer.kv_heads,
            }
            yield head | batch | of_kernels(parts)

    def facts(self, start_ns: int) -> dict[str, Any]:
        """What run.json says of the tracing; `start_ns` is the run's start, host monotonic."""
        if self.tracer is None or not self.samples:
            return {}
        return {
            "tracing": {
                **self.tracing.model_dump(),
                "layers": self.tracer.layers,
                "kv_heads": self.tracer.kv_heads,
                "workers": self.tracer.workers,
                "tile_tokens": self.tracer.tile_tokens,
                "clock": self.tracer.clock.described(self.samples, start_ns),
                "passes": self.passes,
                "events": self.events,
                "dropped_events": self.dropped,
                "drain_wait_s": self.tracer.waited_s,
            }
        }


class Part:
    """One kernel's events by worker, and how many each worker dropped."""

    def __init__(
        self,
        kernel: TracedKernel,
        segments: list[Events],
        used_before: npt.NDArray[np.int64],
        dropped_before: npt.NDArray[np.int64],
    ) -> None:
        self.kernel = kernel
        self.dropped = kernel.dropped - dropped_before
        spans = zip(segments, used_before, kernel.used, strict=True)
        self.events = [events[first:last] for events, first, last in spans]
        self.count = sum(map(len, self.events))


def described(record: PassRecord, rows: Any) -> dict[str, Any]:
    """The batch of a pass, by row: what the kernels cannot know, from the scheduler."""
    assert record.block_tables is not None
    by_request = rows.set_index("request_id")
    internal = record.output.req_ids
    requests = [external_id(name) for name in internal]
    here = by_request.loc[requests]
    phases = set(here["phase"])
    return {
        "phase": phases.pop() if len(phases) == 1 else "mixed",
        "requests": requests,
        "phases": here["phase"].tolist(),
        "context_tokens": here["context_tokens"].tolist(),
        "scheduled_tokens": here["scheduled_tokens"].tolist(),
        "block_table": [record.block_tables[name] for name in internal],
    }


def of_kernels(parts: list[Part]) -> dict[str, Any]:
    """What the kernels of one layer recorded; instants count from the first kernel's start."""
    origin = parts[0].kernel.start_ticks
    workers = range(len(parts[0].events))
    events = np.concatenate([events for part in parts for events in part.events])
    heads = events["kv_head"].astype(np.int32)
    return {
        "origin_ticks": origin,
        "kernels": [
            {
                "kernel": part.kernel.kernel,
                "start_ticks": part.kernel.start_ticks - origin,
                "end_ticks": part.kernel.end_ticks - origin,
            }
            for part in parts
        ],
        "segments": {
            "kernel": [number for number in range(len(parts)) for _ in workers],
            "worker": [worker for _ in parts for worker in workers],
            "events": [len(events) for part in parts for events in part.events],
            "dropped": [int(count) for part in parts for count in part.dropped],
        },
        "events": {
            "kind": plain(events["kind"]),
            "row": plain(events["row"]),
            "kv_head": np.where(heads == ALL_HEADS, -1, heads),
            "block": plain(events["block"]),
            "block_position": plain(events["block_position"]),
            "offset_tokens": plain(events["offset_tokens"]),
            "tokens": plain(events["tokens"]),
            "start_ticks": events["start_ticks"].astype(np.int64) - origin,
            "duration_ticks": plain(events["duration_ticks"]),
        },
    }


def plain(column: Events) -> Events:
    """A field of records as an array by itself, which orjson can write."""
    return np.ascontiguousarray(column)
