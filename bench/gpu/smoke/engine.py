"""Runs of the real vLLM with kvscope: campaigns with forks, in the order of their importance.

A lot is a campaign: one process imports vLLM, and is forked for each of its runs. A lot for which
no time is left is skipped, which is neither a success nor a failure. While one is measured, the
runs of the one before are checked: hashes, every oracle, tables and metrics computed again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kvscope.errors import KvscopeError
from kvscope.layout import experiment_directory
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.runfile import COMPLETE, read_run
from smoke.place import FAILED, NO_TIME, PASSED, REHEARSED, ROOT, WORK, store

MEASURED = "measured"
JUDGES = 1 + len(os.sched_getaffinity(0)) // 4  # at a time
MARGIN_S = 20.0  # for the last checks
END_S = 4.0  # for a campaign to end by itself at its limit
RESULTS = WORK / "results"

TINY = (
    *("device=cuda", "model=tiny-llama", "workload=fixed", "workload.num_requests=8"),
    *("workload.prompt_tokens=96", "workload.output_tokens=96", "engine.max_model_len=256"),
    *("engine.max_num_batched_tokens=1024", "engine.max_num_seqs=16", "cache.block_size=16"),
    *("engine.attention=instrumented", "profiler=none", "repeats=1", "warmup=1"),
)
LLAMA = (
    *("device=cuda", "model=yarn-llama-2-7b", "workload=fixed", "workload.num_requests=4"),
    *("workload.prompt_tokens=992", "workload.output_tokens=64", "engine.max_model_len=1056"),
    *("engine.max_num_batched_tokens=4096", "engine.max_num_seqs=4", "cache.block_size=16"),
    *("engine.attention=instrumented", "profiler=none", "repeats=1", "warmup=1"),
    *("batching=prefill_first", "cache.blocks=250", "overflow=swap", "overflow.host_gib=4"),
)
# Windows and full attention, by vLLM's own kernels in Triton.
GROUPS = (
    *("device=cuda", "model=tiny-interleaved", "workload=fixed", "workload.num_requests=4"),
    *("workload.prompt_tokens=96", "workload.output_tokens=96", "engine.max_model_len=256"),
    *("engine.max_num_batched_tokens=1024", "engine.max_num_seqs=16", "cache.block_size=16"),
    *("cache.blocks=140", "profiler=none", "repeats=1", "warmup=1"),
)
AMPLE, SCARCE, POOL = "cache.blocks=128", "cache.blocks=48", "overflow.host_gib=0.25"
# In a rehearsal: small enough for Triton's interpreter.
IN_SMALL = {
    "model": "tiny-llama",
    "model.layers": "1",
    "workload.num_requests": "2",
    "workload.prompt_tokens": "20",
    "workload.output_tokens": "14",
    "engine.max_model_len": "64",
    "engine.max_num_batched_tokens": "64",
    "cache.blocks": "4",
}
SMALLER = {"batching.chunk_tokens": "32", "overflow.host_gib": "0.01"}  # where they are set
SMALL_AMPLE = "20"


@dataclass
class Run:
    """An experiment; `tokens_of` is a run of the same lot or before whose tokens it must have."""

    name: str
    settings: tuple[str, ...]
    tokens_of: str | None = None

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, in small if it is rehearsed."""
        found = dict(word.split("=", 1) for word in self.settings)
        if REHEARSED:
            ample = AMPLE in self.settings
            found |= IN_SMALL | {key: SMALLER[key] for key in SMALLER.keys() & found.keys()}
            found |= {"cache.blocks": SMALL_AMPLE} if ample else {}
        words = [f"{key}={value}" for key, value in found.items()]
        return expand(None, words, ROOT / "config").experiments[0].experiment


@dataclass(frozen=True)
class Lot:
    """Runs of one campaign, and how many seconds it takes on a GPU."""

    name: str
    seconds: float
    runs: tuple[Run, ...]


LOTS = (
    Lot(
        "overflow",
        60,
        (
            Run("ample", (*TINY, AMPLE)),
            Run("recompute", (*TINY, SCARCE), "ample"),
            Run("swap", (*TINY, SCARCE, "overflow=swap", POOL), "ample"),
        ),
    ),
    Lot(
        "recorded",
        50,
        (
            Run(
                "swap, coalesced, chunked, recorded",
                (
                    *(*TINY, SCARCE, "overflow=swap", POOL, "overflow.copies=coalesced"),
                    *("batching=chunked", "batching.chunk_tokens=128", "tracing=full"),
                ),
                "ample",
            ),
            Run("native", (*TINY, SCARCE, "overflow=native", POOL), "ample"),
        ),
    ),
    Lot(
        "7B",
        60,
        (
            Run("7B, swap", LLAMA),
            Run("7B, swap, coalesced", (*LLAMA, "overflow.copies=coalesced")),
        ),
    ),
    Lot(
        "further",
        60,
        (
            Run("activation", (*TINY, SCARCE, "overflow=activation", POOL), "ample"),
            Run(
                "adaptive",
                (*TINY, SCARCE, "overflow=adaptive", "overflow.hardware=h100", POOL),
                "ample",
            ),
            # Not compared: vLLM's kernels sum in another order where the batch is another.
            Run("KV groups, swap", (*GROUPS, "overflow=swap", POOL)),
        ),
    ),
)


def main(seconds: float) -> list[str]:
    """Measure and judge lot after lot, until the time is up; what is wrong with the runs."""
    until = time.monotonic() + seconds - MARGIN_S
    rows: list[dict[str, Any]] = []
    lots = LOTS[: 2 if REHEARSED else None]
    for run in (run for lot in lots for run in lot.runs):
        print(run.experiment.id)  # made here: Hydra composes in one thread
    with ThreadPoolExecutor(JUDGES) as beside:
        for lot in lots:
            rows += (new := [new_row(lot, run) for run in lot.runs])
            if (left := until - time.monotonic()) > lot.seconds:
                measure(lot, new, left)
            store("engine", rows)
            for row in new:
                if row["outcome"] == MEASURED:
                    beside.submit(judge, row, until + MARGIN_S / 2)
    for row in rows:
        compare_tokens(row, rows)
    store("engine", rows)
    return [f"{row['run']}: {fault}" for row in rows for fault in row["faults"]]


def new_row(lot: Lot, run: Run) -> dict[str, Any]:
    """What is known of a run before it is measured."""
    return {
        "run": run.name,
        "lot": lot.name,
        "id": run.experiment.id,
        "tokens_of": run.tokens_of,
        "outcome": NO_TIME,
        "faults": [],
    }


def measure(lot: Lot, rows: list[dict[str, Any]], left: float) -> None:
    """Measure a lot within so many seconds."""
    files = []
    for run in lot.runs:
        files.append(WORK / f"{run.experiment.id}.yaml")
        files[-1].write_text(dump(run.experiment), encoding="utf-8")
    words = ["-m", "kvscope.cli", "run", *map(str, files), "--multirun", "--results", str(RESULTS)]
    start, log = time.monotonic(), WORK / f"campaign-{lot.name}.log"
    code = python(words, log, left)
    took = time.monotonic() - start
    print(f"{lot.name}: exit {code}, {took:.1f} s", flush=True)
    for row in rows:
        row |= {"lot_s": took, **settled(directory_of(row), code)}


def python(words: list[str], log: Path, seconds: float) -> int | None:
    """The exit status of a Python program; None if it was ended after so many seconds."""
    command = [sys.executable, *words]
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            return process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program that has not ended, first politely."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def directory_of(row: dict[str, Any]) -> Path:
    """Where a run's records are."""
    return experiment_directory(RESULTS, row["id"])


def settled(directory: Path, code: int | None) -> dict[str, Any]:
    """How a run of a campaign ended."""
    try:
        facts = read_run(directory)
    except KvscopeError:  # it has not got so far
        late = "it was not finished when the time was up"
        return {"outcome": FAILED, "faults": [late if code is None else "it has no run.json"]}
    if facts["status"] == COMPLETE:
        return {"outcome": MEASURED}
    return {"outcome": FAILED, "faults": [str(facts["reason"])]}


def judge(row: dict[str, Any], until: float) -> None:
    """Have a run judged, and add to its row what that says."""
    log, verdict = (WORK / f"judge-{row['id']}.{end}" for end in ("log", "json"))
    words = ["-m", "smoke.judge", str(directory_of(row)), str(verdict)]
    code = python(words, log, until - time.monotonic())
    if code is None:
        row["outcome"] = f"measured; {NO_TIME} to check it"
        return
    if code == 0:
        row |= json.loads(verdict.read_text(encoding="utf-8"))
    else:
        said = log.read_text(encoding="utf-8").splitlines() or ["it said nothing"]
        row["faults"].append(f"it cannot be judged: {said[-1]}")
    row["outcome"] = FAILED if row["faults"] else PASSED


def compare_tokens(row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Note whether a run's requests got the tokens of those of the run that it is compared with."""
    like = next((one for one in rows if one["run"] == row["tokens_of"]), {})
    if not {"tokens"} <= row.keys() & like.keys():
        return
    own, other = row["tokens"], like["tokens"]
    same = sum(other.get(request) == tokens for request, tokens in own.items())
    row["same_tokens"] = f"{same} of {len(own)}"
    if same < len(own):
        row["outcome"] = FAILED
        others = f"{len(own) - same} of {len(own)} requests got other tokens"
        row["faults"].append(f"{others} than in '{like['run']}'")
