"""Runs of the real vLLM with kvscope: campaigns with forks, in the order of their importance.

A lot is a campaign: one process imports vLLM, and is forked for each of its runs. A lot for which
no time is left is skipped, which is neither a success nor a failure. While one is measured, the
runs of the one before are checked: hashes, every oracle, tables and metrics computed again.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.layout import experiment_directory, tables_directory
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.runfile import read_run
from smoke.place import REHEARSED, ROOT, WORK, sentence, store

NO_TIME = "skipped: no time left"
MARGIN_S = 20.0  # for the last checks
END_S = 10.0  # for a campaign to end by itself at its limit
RESULTS = WORK / "results"
GIB = 2**30

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
    *("batching=prefill_first", "cache.blocks=256", "overflow=swap", "overflow.host_gib=4"),
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


@dataclass(frozen=True)
class Run:
    """An experiment; `tokens_of` is a run of the same lot or before whose tokens it must have."""

    name: str
    settings: tuple[str, ...]
    tokens_of: str | None = None

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
)


def main(seconds: float) -> list[str]:
    """Measure and check lot after lot, until the time is up; what is wrong with the runs."""
    end = time.monotonic() + seconds - MARGIN_S
    rows: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(1) as beside:
        checks = [
            beside.submit(judge, lot, rows)
            for lot in LOTS[: 2 if REHEARSED else None]
            if measured(lot, rows, end - time.monotonic())
        ]
        for check in checks:
            check.result()
    store("engine", list(rows.values()))
    return [f"{name}: {fault}" for name, row in rows.items() for fault in row["faults"]]


def measured(lot: Lot, rows: dict[str, dict[str, Any]], left: float) -> bool:
    """Run a lot's campaign; whether there is something to check."""
    for run in lot.runs:
        rows[run.name] = {"run": run.name, "lot": lot.name, "faults": [], "outcome": NO_TIME}
    store("engine", list(rows.values()))
    if left < lot.seconds / 2:
        return False
    took, code = campaign(lot, left)
    print(f"{lot.name}: exit {code}, {took:.1f} s", flush=True)
    for run in lot.runs:
        rows[run.name] |= {"lot_s": took} | settled(run, code)
    store("engine", list(rows.values()))
    return any(rows[run.name]["outcome"] == "measured" for run in lot.runs)


def campaign(lot: Lot, left: float) -> tuple[float, int | None]:
    """Seconds and exit status of the campaign; None if it was ended when no time was left."""
    files = []
    for number, run in enumerate(lot.runs):
        files.append(WORK / f"{lot.name}-{number}.yaml")
        files[-1].write_text(dump(run.experiment()), encoding="utf-8")
    words = ["run", *map(str, files), "--multirun", "--tables", "--results", str(RESULTS)]
    start = time.monotonic()
    code = kvscope(words, WORK / f"campaign-{lot.name}.log", left)
    return time.monotonic() - start, code


def kvscope(words: list[str], log: Path, seconds: float) -> int | None:
    """The exit status of a command of kvscope; None if it was ended after so many seconds."""
    command = [sys.executable, "-m", "kvscope.cli", *words]
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            return process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


def directory_of(run: Run) -> Path:
    """Where the run's records and tables are."""
    return experiment_directory(RESULTS, run.experiment().id)


def settled(run: Run, code: int | None) -> dict[str, Any]:
    """How a run of a campaign ended."""
    directory = directory_of(run)
    try:
        facts = read_run(directory)
    except Exception:  # it has not got so far
        facts = {"status": None, "reason": "the campaign ended before"}
    if facts["status"] == "complete":
        return {"outcome": "measured", "id": directory.name}
    if code is None:
        return {"outcome": "failed", "faults": ["not finished when the step's time was up"]}
    return {"outcome": "failed", "faults": [str(facts["reason"])]}


def judge(lot: Lot, rows: dict[str, dict[str, Any]]) -> None:
    """Check a lot's runs, and read what the report has of them."""
    for run in lot.runs:
        row = rows[run.name]
        if row["outcome"] != "measured":
            continue
        try:
            row |= numbers(directory_of(run))
            row["faults"] += [*checked(run), *other_tokens(run, row)]
        except Exception as error:
            row["faults"].append(sentence(error))
        row["outcome"] = "failed" if row["faults"] else "passed"
        store("engine", list(rows.values()))


def checked(run: Run) -> Iterator[str]:
    """What `kvscope check` complains of."""
    log = WORK / f"check-{directory_of(run).name}.log"
    if kvscope(["check", str(directory_of(run))], log, 120):
        lines = log.read_text(encoding="utf-8").splitlines()
        yield from [line for line in lines if line.startswith("kvscope: ")] or lines[-1:]


def other_tokens(run: Run, row: dict[str, Any]) -> Iterator[str]:
    """Whether its requests got other tokens than those of the run that it is compared with."""
    if run.tokens_of is None:
        return
    like = next(r for lot in LOTS for r in lot.runs if r.name == run.tokens_of)
    own, other = (tokens(directory_of(one)) for one in (run, like))
    same = int((own == other.reindex(own.index)).sum())
    row["same_tokens"] = f"{same} of {len(own)}"
    if same < len(own):
        yield f"{len(own) - same} of {len(own)} requests got other tokens than in '{like.name}'"


def tokens(directory: Path) -> "pd.Series[str]":
    """A hash of each request's tokens."""
    requests = pd.read_parquet(tables_directory(directory) / "requests.parquet")
    return requests.set_index("request_id")["output_sha256"]


def numbers(directory: Path) -> dict[str, Any]:
    """What the report has of a run."""
    run, tables = read_run(directory), tables_directory(directory)
    found: dict[str, Any] = {
        "time_source": run["time_source"],
        "vllm": run["versions"]["vllm"],
        "start_engine_s": run["timings_s"]["start_engine"],
        "repeat_s": run["clock"]["repeats"][0]["duration_s"],
        "host_memory": run["engine"]["host_memory"],
        "passes": len(pd.read_parquet(tables / "steps.parquet")),
        "preemptions": len(pd.read_parquet(tables / "preemptions.parquet")),
    }
    for check in ("reference_checks", "swap_checks"):
        found[check] = run["engine"].get(check)
    transfers = pd.read_parquet(tables / "transfers.parquet")
    for direction, part in transfers.groupby("direction"):
        found[f"{direction}_gib_per_s"] = part["bytes"].sum() / part["copy_s"].sum() / GIB
    if (events := tables / "kv_events.parquet").exists():
        found["kv_events"] = len(pd.read_parquet(events, columns=["kind"]))
    return found
