"""Small runs of the device of `tests/priced`: vLLM's real scheduler on a virtual clock.

They are made once, and kept as files in `.cache/runs`, under a hash of the code and configuration
that makes them. One process makes all of them, each in less than half a second; a suite that finds
them needs no vLLM. Passes and copies cost what they may cost on a slow CPU.
"""

import fcntl
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

import pandas as pd
import pytest
import yaml

from kvscope import tables
from kvscope.cli.batch import Job, run_all
from kvscope.plan.grid import expand
from kvscope.run.display import Line
from kvscope.tables import runfile

ROOT = Path(__file__).parents[2]
PRICED = ROOT / "tests" / "priced"
KEPT = ROOT / ".cache" / "runs"
KEPT_S = 86_400  # at least
# Modules that only read runs.
READERS = {"cli", "judge", "metrics", "report"}
TABLES = ("requests", "steps", "batch", "preemptions", "transfers", "workload", "kv_groups")

SMALL = (
    *("device=priced", "workload=uniform", "workload.num_requests=12"),
    *("workload.min_tokens=70", "workload.max_tokens=128", "workload.prompt_to_output_ratio=1.5"),
    *("engine.max_model_len=128", "engine.max_num_batched_tokens=512", "engine.max_num_seqs=256"),
    *("cache.block_size=32", "cache.admission=vllm", "cache.watermark=0", "cache.layout=by_layer"),
    *("profiler=none", "repeats=1", "warmup=0"),
)
AMPLE, SCARCE = ("cache.blocks=48",), ("cache.blocks=12",)
LARGE = ("cache.block_size=64", "cache.blocks=6")
CHUNKED = ("batching=chunked", "batching.chunk_tokens=256")
SWAP = ("overflow=swap", "overflow.host_blocks=100")
PAGEABLE, COALESCED = "overflow.host_memory=pageable", "overflow.copies=coalesced"
FEW = "workload.num_requests=6"

RUNS: dict[str, tuple[str, ...]] = {
    "ample": (*AMPLE, *CHUNKED),
    "recompute": (*SCARCE, *CHUNKED),
    "swap": (*SCARCE, *CHUNKED, *SWAP),
    "swap, prefill first": (*SCARCE, *SWAP, "batching=prefill_first"),
    "swap, a small pool": (*SCARCE, *CHUNKED, *SWAP, "overflow.host_blocks=2"),
    "swap, ample": (*AMPLE, *CHUNKED, *SWAP),
    "mixed": (*SCARCE, "batching=mixed"),
    "mixed, ample": (*AMPLE, "batching=mixed"),
    "small chunks, swap": (*SCARCE, *CHUNKED, *SWAP, "batching.chunk_tokens=48"),
    "short": (*AMPLE, *CHUNKED, "workload.num_requests=3", "workload.prompt_to_output_ratio=12"),
    "short, swap": (
        *("cache.blocks=7", *CHUNKED, *SWAP, FEW, "workload.prompt_to_output_ratio=4"),
        "overflow.host_blocks=20",
    ),
    # A host that keeps tokens which its request will not use again
    "swap, aborted": (
        *(*SCARCE, *CHUNKED, *SWAP, "overflow.victim=first", "workload.arrival=poisson"),
        *("workload.rate_per_s=30", "workload.timeout_s=0.6"),
    ),
    # A prompt that begins though it has no room as a whole, and is preempted again and again
    "thrash": (
        *(*CHUNKED, FEW, "batching.chunk_tokens=32", "cache.blocks=29"),
        *("workload.min_tokens=300", "workload.max_tokens=320", "engine.max_model_len=512"),
        *("workload.prompt_to_output_ratio=4", "engine.scheduler_reserve_full_isl=false"),
    ),
    # Block sizes and kinds of swaps
    "swap, coalesced": (*SCARCE, *CHUNKED, *SWAP, COALESCED),
    "swap, pageable": (*SCARCE, *CHUNKED, *SWAP, PAGEABLE),
    "swap, pageable, coalesced": (*SCARCE, *CHUNKED, *SWAP, PAGEABLE, COALESCED),
    "large blocks, ample": (*CHUNKED, *LARGE, "cache.blocks=24"),
    "large blocks, recompute": (*CHUNKED, *LARGE),
    "large blocks, swap": (*CHUNKED, *SWAP, *LARGE),
    "large blocks, swap, coalesced": (*CHUNKED, *SWAP, *LARGE, COALESCED),
    "large blocks, swap, pageable": (*CHUNKED, *SWAP, *LARGE, PAGEABLE),
    "large blocks, swap, pageable, coalesced": (*CHUNKED, *SWAP, *LARGE, PAGEABLE, COALESCED),
    # Batching
    "prefill first": (*SCARCE, "batching=prefill_first"),
    "prefill first, ample": (*AMPLE, "batching=prefill_first"),
    "chunks": (*SCARCE, *CHUNKED, "batching.chunk_tokens=128"),
    "chunks, ample": (*AMPLE, *CHUNKED, "batching.chunk_tokens=128"),
    "small chunks": (*SCARCE, *CHUNKED, "batching.chunk_tokens=64"),
    "small chunks, ample": (*AMPLE, *CHUNKED, "batching.chunk_tokens=64"),
}


@dataclass(frozen=True)
class Virtual:
    """A run: its settings, its run.json, and its tables by name."""

    settings: dict[str, Any]
    facts: dict[str, Any]
    tables: dict[str, pd.DataFrame]


@cache
def virtual(name: str) -> Virtual:
    """The run of this name, of one repeat; skips the test where vLLM is missing."""
    directory = directory_of(name)
    frames = {t: tables.read(tables.TABLES[t], directory / f"{t}.parquet") for t in TABLES}
    settings = yaml.safe_load((directory / "experiment.yaml").read_text(encoding="utf-8"))
    return Virtual(settings, runfile.read_run(directory), frames)


def directory_of(name: str) -> Path:
    """The directory of the run of this name; skips the test where vLLM is missing."""
    return _kept() / name


@cache
def _kept() -> Path:
    """The directory of all runs, made if it is not there. Another process waits meanwhile."""
    runs = KEPT / _key()
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not runs.is_dir():
            if find_spec("vllm") is None:  # the fixture `require` cannot be had outside of a test
                end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
                end("vLLM is missing, which makes the runs that tests begin with: run `make env`")
            making = KEPT / "making"  # what another process that was killed has left is made again
            rmtree(making, ignore_errors=True)
            _make(making)
            making.rename(runs)
            _forget()
    return runs


def _forget() -> None:
    """Remove what other code has made, if no suite that still runs can have begun with it."""
    for runs in KEPT.iterdir():
        if runs.is_dir() and time.time() - runs.stat().st_mtime > KEPT_S:
            rmtree(runs, ignore_errors=True)


def _make(directory: Path) -> None:
    """Run them in a process that has the device."""
    path = os.pathsep.join(filter(None, (str(PRICED), str(ROOT), os.environ.get("PYTHONPATH"))))
    words = [sys.executable, "-m", "tests.unit.virtual_runs", str(directory)]
    subprocess.run(words, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": path})


def main(directory: Path) -> int:
    """Make the runs; the exit code."""
    jobs = []
    for name, words in RUNS.items():
        last = {word.partition("=")[0]: word for word in (*SMALL, *words)}
        (planned,) = expand(None, list(last.values()), ROOT / "config").experiments
        jobs.append(Job(planned.experiment, directory / name))
    with Line(sys.stderr) as line:
        return run_all(jobs, line)


def _key() -> str:
    """The hash of all that makes the runs."""
    code = ROOT / "src" / "kvscope"
    files = [
        *(p for p in code.rglob("*.py") if p.relative_to(code).parts[0] not in READERS),
        *(p for d in (code, ROOT / "config") for p in d.rglob("*.yaml")),
        *(ROOT / "envs").glob("*.txt"),
        *PRICED.glob("*.py"),
        Path(__file__),
    ]
    digest = sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(b"%s %d %b" % (str(path.relative_to(ROOT)).encode(), len(content), content))
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
