"""Writes the kernels' records to `kernel_events.jsonl.zst`: one JSON object per (pass, layer).

This is done between repeats, when nothing is timed. docs/KV_EVENTS.md defines the object.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import zstandard

from kvscope.api.engines import rows
from kvscope.api.experiments import Experiment
from kvscope.api.tables import passes, runfile
from kvscope.api.tracing import events
from kvscope_kernels.engine.clock import ClockSample
from kvscope_kernels.engine.tracer import TracedPass, Tracer
from kvscope_kernels.kv_events import FLUSH_VERSION

COMPRESSION_LEVEL = 3

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


class KernelEvents(events.EventRecorder):
    """Writes and counts a run's KV events, repeat by repeat."""

    def __init__(self, experiment: Experiment, tracer: Tracer, directory: Path) -> None:
        self.tracing, self.block_size = experiment.tracing, experiment.cache.block_size
        self.tracer = tracer
        self.path = directory / runfile.KERNEL_EVENTS
        self.samples: list[ClockSample] = []  # of the tracer's clock
        self.events = self.dropped = self.passes = 0
        self.waited_before_s = 0.0

    def resume(self, earlier: dict[str, Any] | None, start_ns: int) -> None:
        """Go on counting where an earlier process of the run ended; `earlier` are its `facts`."""
        if not earlier:
            return
        for row in earlier["clock"]["samples"]:
            sample = ClockSample(row["ticks"], row["host_ns"] + start_ns, row["uncertainty_ns"])
            self.samples.append(sample)
        self.passes, self.events = earlier["passes"], earlier["events"]
        self.dropped, self.waited_before_s = earlier["dropped_events"], earlier["drain_wait_s"]

    @contextmanager
    def record(self) -> Iterator[None]:
        """Context within which KV events are traced; the clocks are sampled at both ends.

        The events can be written until the next call.
        """
        self.tracer.clear()
        self.samples.append(self.tracer.clock.sample())
        try:
            yield
        finally:
            self.samples.append(self.tracer.clock.sample())

    def write(self, number: int, recording: rows.Recording, repeat: events.RepeatTables) -> None:
        """Append a repeat's events to the file."""
        batches = dict(iter(repeat.batch.groupby("step")))
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
        with (
            self.path.open("ab") as file,
            compressor.stream_writer(file, closefd=False) as out,
        ):
            self.tracer.finish()
            for traced in self.tracer.passes:
                batch = describe_batch(recording.passes[traced.step], batches[traced.step])
                batch |= {"repeat": number, "step": traced.step, "block_size": self.block_size}
                for flush in self.flushes(self.tracer, traced, batch):
                    out.write(orjson.dumps(flush, option=OPTIONS))
        self.passes += len(self.tracer.passes)

    def flushes(
        self, tracer: Tracer, traced: TracedPass, batch: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The objects of one traced pass, layer by layer."""
        for layer, recorded in tracer.flushes(traced):
            self.events += int(sum(recorded["segments"]["events"]))
            self.dropped += int(sum(recorded["segments"]["dropped"]))
            head = {
                "version": FLUSH_VERSION,
                "layer": layer,
                "tile_tokens": tracer.tile_tokens,
                "kv_heads": tracer.kv_heads,
            }
            yield head | batch | recorded

    def facts(self, start_ns: int) -> dict[str, Any]:
        """The entry `tracing` of run.json; `start_ns` is the run's start on the host's clock."""
        if not self.samples:
            return {}
        return {
            "tracing": {
                **self.tracing.model_dump(),
                "layers": self.tracer.layers,
                "kv_heads": self.tracer.kv_heads,
                "workers": self.tracer.workers,
                "tile_tokens": self.tracer.tile_tokens,
                "clock": self.tracer.clock.facts(self.samples, start_ns),
                "passes": self.passes,
                "events": self.events,
                "dropped_events": self.dropped,
                "drain_wait_s": self.waited_before_s + self.tracer.waited_s,
            }
        }


def describe_batch(record: rows.PassRecord, scheduled: Any) -> dict[str, Any]:
    """The batch of a pass row by row, from the scheduler's records: kernels do not know it.

    Of one KV group.
    """
    batch = sorted(record.batch(), key=lambda row: row.row)
    requests = [row.request_id for row in batch]
    here = scheduled.set_index("request_id").loc[requests]
    return {
        "phase": passes.phase_of_requests(here["phase"]),
        "requests": requests,
        "phases": here["phase"].tolist(),
        "context_tokens": here["context_tokens"].tolist(),
        "scheduled_tokens": here["scheduled_tokens"].tolist(),
        "block_table": [list(row.blocks[0]) for row in batch],
    }
