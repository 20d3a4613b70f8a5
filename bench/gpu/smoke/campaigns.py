"""Runs of a step, measured in campaigns with forks, and judged.

A lot for which no time is left is skipped, which is neither a success nor a failure. While one is
measured, the runs of the one before are checked: hashes, every oracle, tables and metrics computed
again.
"""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kvscope.base.errors import KvscopeError
from kvscope.base.layout import experiment_directory
from kvscope.plan.experiment import dump
from kvscope.tables.runfile import COMPLETE, read_run
from smoke.lots import Lot, Run
from smoke.place import FAILED, NO_TIME, PASSED, WORK, store
from smoke.programs import python

MEASURED = "measured"
JUDGES = 1 + len(os.sched_getaffinity(0)) // 4  # at a time
MARGIN_S = 20.0  # for the last checks
RESULTS = WORK / "results"


def serve(step: str, lots: Sequence[Lot], seconds: float) -> list[str]:
    """Measure and judge the lots of a step until the time is up; complaints about the runs."""
    until = time.monotonic() + seconds - MARGIN_S
    rows: list[dict[str, Any]] = []
    for run in (run for lot in lots for run in lot.runs):
        print(run.experiment.id)  # made here: Hydra composes in one thread
    with ThreadPoolExecutor(JUDGES) as beside:
        for lot in lots:
            rows += (new := [new_row(lot, run) for run in lot.runs])
            if (left := until - time.monotonic()) > lot.seconds:
                measure(lot, new, left)
            store(step, rows)
            for row in new:
                if row["outcome"] == MEASURED:
                    beside.submit(judge, row, until + MARGIN_S / 2)
    for row in rows:
        compare_tokens(row, rows)
    store(step, rows)
    return [f"{row['run']}: {fault}" for row in rows for fault in row["faults"]]


def new_row(lot: Lot, run: Run) -> dict[str, Any]:
    """The row of a run that is not measured yet."""
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


def directory_of(row: dict[str, Any]) -> Path:
    """Directory of a run's records."""
    return experiment_directory(RESULTS, row["id"])


def settled(directory: Path, code: int | None) -> dict[str, Any]:
    """Outcome of a run of a campaign."""
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
        output = log.read_text(encoding="utf-8").splitlines() or ["it said nothing"]
        row["faults"].append(f"it cannot be judged: {output[-1]}")
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
