"""A traced run as run and collect leave it: four requests, served in five forward passes.

A layer writes the new tokens' K and V, then its work items (a tile of queries, a KV head) read all
blocks up to the tile's end: K of each, V of each. Two workers share the items.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from kvscope import tables
from kvscope.metrics.experiment import analyse
from kvscope.tables import accounts, runfile
from kvscope.tables.stalls import shape_classes

from .report_fixture import Fake, clocks, facts, settings

BETWEEN_LAYERS_NS, BETWEEN_PASSES_NS, SOFTMAX_NS = 40_000, 200_000, 900
READ_NS, WRITE_NS = 250, 120
TOKEN_BYTES = 64  # of one head's K of one layer


@dataclass
class Served:
    """Requests, the engine that serves them, and the part that is traced."""

    prompts: tuple[int, ...] = (16, 343, 16, 893)
    outputs: int = 5
    block_size: int = 16
    layers: int = 4
    heads: int = 8
    tile: int = 64
    workers: int = 2
    repeats: int = 3
    blocks: int = 303
    head_stride: int = 1
    layer_stride: int = 1
    step_stride: int = 1
    events: list[tuple[Any, ...]] = field(default_factory=list)
    kernels: list[tuple[Any, ...]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    batch: list[dict[str, Any]] = field(default_factory=list)

    @property
    def block_bytes(self) -> int:
        return self.block_size * 2 * self.layers * self.heads * TOKEN_BYTES

    def blocks_of(self, tokens: int) -> int:
        return math.ceil(tokens / self.block_size)


class Engine:
    """Serves one repeat, and writes the rows of its tables."""

    def __init__(self, served: Served, repeat: int):
        self.served, self.repeat = served, repeat
        self.origin = repeat * 10**9
        self.now = self.origin
        self.random = np.random.default_rng(repeat)
        self.free = list(range(served.blocks))
        self.tables: list[list[int]] = [[] for _ in served.prompts]
        self.context = [0] * len(served.prompts)

    def serve(self) -> None:
        for step in range(self.served.outputs):
            scheduled = list(self.served.prompts) if step == 0 else [1] * len(self.tables)
            self.forward(step, scheduled)
            self.context = [c + s for c, s in zip(self.context, scheduled, strict=True)]
            self.now += BETWEEN_PASSES_NS

    def forward(self, step: int, scheduled: list[int]) -> None:
        served, start = self.served, self.now
        for row, tokens in enumerate(scheduled):
            while len(self.tables[row]) < served.blocks_of(self.context[row] + tokens):
                self.tables[row].append(self.free.pop())
        traced = step % served.step_stride == 0
        for layer in range(served.layers):
            self.now += BETWEEN_LAYERS_NS
            if traced and layer % served.layer_stride == 0:
                self.write(step, layer, scheduled)
                self.attend(step, layer, scheduled)
        self.record(step, scheduled, start)

    def write(self, step: int, layer: int, scheduled: list[int]) -> None:
        start, clocks = self.now, [self.now] * self.served.workers
        for row, tokens in enumerate(scheduled):
            end = self.context[row] + tokens
            at = self.context[row]
            while at < end:
                position, offset = divmod(at, self.served.block_size)
                count = min(self.served.block_size - offset, end - at)
                worker = int(np.argmin(clocks))
                for kind in ("k_write", "v_write"):
                    place = (position, offset, count)
                    self.event(step, layer, row, kind, None, place, clocks, worker)
                at += count
        self.now = max(clocks)
        self.kernel(step, layer, "write", start)

    def attend(self, step: int, layer: int, scheduled: list[int]) -> None:
        start, clocks = self.now, [self.now] * self.served.workers
        for row, tokens in enumerate(scheduled):
            for first in range(0, tokens, self.served.tile):
                end = self.context[row] + min(first + self.served.tile, tokens)
                for head in range(0, self.served.heads, self.served.head_stride):
                    self.item(step, layer, row, head, end, clocks)
        self.now = max(clocks)
        self.kernel(step, layer, "attention", start)

    def item(self, step: int, layer: int, row: int, head: int, end: int, clocks: list[int]) -> None:
        worker = int(np.argmin(clocks))
        for kind in ("k_read", "v_read"):
            for position in range(self.served.blocks_of(end)):
                count = min(self.served.block_size, end - position * self.served.block_size)
                place = (position, 0, count)
                self.event(step, layer, row, kind, head, place, clocks, worker)
            clocks[worker] += SOFTMAX_NS

    def event(
        self,
        step: int,
        layer: int,
        row: int,
        kind: str,
        head: int | None,
        place: tuple[int, int, int],
        clocks: list[int],
        worker: int,
    ) -> None:
        usual = READ_NS if kind.endswith("read") else WRITE_NS
        duration = usual + int(self.random.integers(0, 60))
        start, phase = clocks[worker], "decode" if step else "prefill"
        clocks[worker] += duration + 12
        position, offset, count = place
        block = self.tables[row][position]
        who = (self.repeat, step, layer, str(row), phase, kind, head)
        times = (start, start + duration, worker, None)
        self.served.events.append((*who, block, position, offset, count, *times))

    def kernel(self, step: int, layer: int, kernel: str, start: int) -> None:
        phase = "decode" if step else "prefill"
        name = (self.repeat, step, layer, phase, kernel)
        self.served.kernels.append((*name, start, self.now, 0, 0, 0, 0))

    def record(self, step: int, scheduled: list[int], start: int) -> None:
        phase = "decode" if step else "prefill"
        held = [c + s for c, s in zip(self.context, scheduled, strict=True)]
        tokens = {"prefill_tokens": 0, "decode_tokens": 0} | {f"{phase}_tokens": sum(scheduled)}
        self.served.steps.append(
            dict.fromkeys(tables.STEPS.names, 0) | tokens | {
                "repeat": self.repeat, "step": step, "phase": phase,
                "start_s": (start - self.origin) * 1e-9, "duration_s": (self.now - start) * 1e-9,
                "schedule_s": 1e-5, "forward_s": (self.now - start) * 1e-9 - 2e-5,
                "scheduled_tokens": sum(scheduled), "sampled_tokens": len(scheduled),
                "requests": len(scheduled), "kv_blocks_total": self.served.blocks,
                "kv_blocks_used": sum(map(len, self.tables)), "kv_tokens_used": sum(held),
                "stalled": False, "time_source": "measured", "group_blocks_used": None,
            }
        )  # fmt: skip
        self.served.batch += [
            {
                "repeat": self.repeat, "step": step, "request_id": str(row), "phase": phase,
                "scheduled_tokens": tokens, "recomputed_tokens": 0,
                "context_tokens": self.context[row], "sampled_tokens": 1, "resumed": False,
            }
            for row, tokens in enumerate(scheduled)
        ]  # fmt: skip


def serve(served: Served | None = None) -> Served:
    """Serve every repeat, and give the rows."""
    done = replace(served or Served(), events=[], kernels=[], steps=[], batch=[])
    for repeat in range(done.repeats):
        Engine(done, repeat).serve()
    return done


def events_frame(done: Served) -> pd.DataFrame:
    return pd.DataFrame(done.events, columns=tables.KV_EVENTS.names)


def write_traced_run(results: Path, name: str = "traced", served: Served | None = None) -> Path:
    """Write the run's directory, its collected KV tables and its metrics; the directory."""
    done = serve(served)
    directory = write_run_of(done, results, name)
    trace_run(directory, results / "tables" / name, done)
    return directory


def write_untraced_run(results: Path, name: str, served: Served | None = None) -> Path:
    """Write the run without KV events."""
    directory = write_run_of(serve(served), results, name)
    collect_and_analyse(directory, results / "tables" / name)
    return directory


def write_run_of(done: Served, results: Path, name: str) -> Path:
    """Write the directory of a run that served this."""
    directory, out = results / "experiments" / name, results / "tables" / name
    for path in (directory, out):
        path.mkdir(parents=True, exist_ok=True)
    fake = Fake({"name": name})
    own = settings(fake) | {"repeats": done.repeats}
    own["model"]["layers"] = done.layers
    own["cache"] = {"block_size": done.block_size, "blocks": done.blocks}
    own["workload"]["num_requests"] = len(done.prompts)
    own["batching"] = {"name": "mixed"}  # prompts are computed whole
    own["engine"]["max_num_batched_tokens"] = max(step["scheduled_tokens"] for step in done.steps)
    (directory / "experiment.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    for table, frame in _host_tables(done).items():
        tables.write(table, frame, directory / f"{table.name}.parquet")
    known = facts(replace(fake, repeats=done.repeats)) | {"experiment_id": name}
    known["engine"] |= {"block_bytes": done.block_bytes, "layers": done.layers}
    known["engine"] |= {"kv_blocks_total": done.blocks, "block_size": done.block_size}
    steps = pd.DataFrame(done.steps, columns=tables.STEPS.names)
    passes, classes = len(steps) // done.repeats, len(set(shape_classes(steps)))
    known["warmup"] |= {"passes": passes, "classes": classes}
    ends = (steps["start_s"] + steps["duration_s"]).groupby(steps["repeat"]).max()
    for repeat in known["clock"]["repeats"]:
        repeat |= clocks(float(ends[repeat["repeat"]]))
    runfile.write_run(directory, known | {"files": runfile.file_records(directory)})
    return directory


def trace_run(directory: Path, out: Path, done: Served) -> None:
    """Make a traced run in the directory, collected and analysed."""
    kernels = pd.DataFrame(done.kernels, columns=tables.KV_KERNELS.names)
    tables.write(tables.KV_EVENTS, events_frame(done), out / "kv_events.parquet")
    tables.write(tables.KV_KERNELS, kernels, out / "kv_kernels.parquet")
    runfile.write_run(directory, runfile.read_run(directory) | {"tracing": tracing(done)})
    held = {"events_dropped": {"violations": 0, "first": ""}}
    collect_and_analyse(directory, out, {"rows": len(done.events), "oracles": held})


def collect_and_analyse(
    directory: Path, out: Path, kv_events: dict[str, Any] | None = None
) -> None:
    """Write tables as of a run without a profile, with this account of KV events, and metrics."""
    for table in (*tables.NSYS_TABLES, tables.TIMELINE):
        tables.write(table, table.empty(), out / f"{table.name}.parquet")
    account: dict[str, Any] = {"rows": {}, "warnings": []}
    told = account if kv_events is None else account | {"kv_events": kv_events}
    accounts.write(out, accounts.COLLECTED, directory, told)
    analyse(directory, out)


def tracing(done: Served) -> dict[str, Any]:
    """The part of run.json about tracing."""
    strides = {"layer": done.layer_stride, "head": done.head_stride, "step": done.step_stride}
    sampled = any(stride > 1 for stride in strides.values())
    named = {"name": "sampled" if sampled else "full"}
    return named | {f"{of}_stride": stride for of, stride in strides.items()}


def _host_tables(done: Served) -> dict[tables.Table, pd.DataFrame]:
    steps = pd.DataFrame(done.steps, columns=tables.STEPS.names)
    ends = (steps["start_s"] + steps["duration_s"]).groupby(steps["repeat"]).agg(["first", "last"])
    requests = [
        {
            "repeat": repeat, "request_id": str(row), "arrival_s": 0.0, "prompt_tokens": prompt,
            "output_tokens": done.outputs, "aborted": False, "first_scheduled_s": 0.0,
            "first_token_s": ends["first"][repeat], "finished_s": ends["last"][repeat],
            "preemptions": 0, "output_sha256": f"{row:064x}",
        }
        for repeat in range(done.repeats)
        for row, prompt in enumerate(done.prompts)
    ]  # fmt: skip
    workload = [
        (str(row), 0.0, prompt, done.outputs, [1]) for row, prompt in enumerate(done.prompts)
    ]
    return {
        tables.WORKLOAD: pd.DataFrame(workload, columns=tables.WORKLOAD.names[:5]),
        tables.REQUESTS: pd.DataFrame(requests, columns=tables.REQUESTS.names),
        tables.STEPS: steps,
        tables.BATCH: pd.DataFrame(done.batch, columns=tables.BATCH.names),
        tables.PREEMPTIONS: tables.PREEMPTIONS.empty(),
        tables.TRANSFERS: tables.TRANSFERS.empty(),
        tables.LAYERS: _layers(steps, done.layers),
    }


def _layers(steps: pd.DataFrame, count: int) -> pd.DataFrame:
    """The layers of each pass, alike in length, within its forward part."""
    each = steps["forward_s"] / count
    parts = [
        steps[["repeat", "step"]].assign(
            layer=layer,
            start_s=steps["start_s"] + steps["schedule_s"] + layer * each,
            duration_s=0.9 * each,
        )
        for layer in range(count)
    ]
    return pd.concat(parts, ignore_index=True)
