"""Judges a run: `python -m smoke.judge RUN FILE` writes complaints about it, and its numbers.

Its tables and metrics are made, then checked as by `kvscope check`: the hashes of its files, every
oracle, tables and metrics computed again.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.base.layout import tables_directory
from kvscope.base.time_sources import MEASURED
from kvscope.base.time_sources import REHEARSED as REHEARSED_TIMES
from kvscope.cli.batch import make_tables
from kvscope.judge.checklist import summary
from kvscope.report.check_run import inspect_run
from kvscope.tables.runfile import TRACING, read_run
from smoke.place import REHEARSED

GIB = 2**30


def main(directory: Path, verdict: Path) -> None:
    """Judge the run in a directory; the verdict is JSON."""
    make_tables(directory)
    result, measured = inspect_run(directory), numbers(directory)
    faults, source = list(result.complaints), REHEARSED_TIMES if REHEARSED else MEASURED
    if measured["time_source"] != source:
        faults.append(f"its times are {measured['time_source']}, not {source}")
    judged = {"faults": faults, "oracles": summary(result.verdicts)}
    verdict.write_text(json.dumps(judged | measured, default=float), encoding="utf-8")


def table(directory: Path, name: str) -> pd.DataFrame:
    """A table of a run: recorded, or computed from recorded tables."""
    computed = tables_directory(directory) / f"{name}.parquet"
    return pd.read_parquet(computed if computed.exists() else directory / f"{name}.parquet")


def numbers(directory: Path) -> dict[str, Any]:
    """Numbers of the run for the report."""
    run, transfers = read_run(directory), table(directory, "transfers")
    result: dict[str, Any] = {
        "time_source": run["time_source"],
        "vllm": run["versions"]["vllm"],
        "start_engine_s": run["timings_s"]["start_engine"],
        "repeat_s": run["clock"]["repeats"][0]["duration_s"],
        "host_memory": run["engine"]["host_memory"],
        "reference_checks": run["engine"].get("reference_checks"),
        "swap_checks": run["engine"].get("swap_checks"),
        "passes": len(table(directory, "steps")),
        "preemptions": int((table(directory, "preemptions")["event"] == "preempt").sum()),
        "tokens": table(directory, "requests").set_index("request_id")["output_sha256"].to_dict(),
    }
    for direction, part in transfers.groupby("direction"):
        result[f"{direction}_gib_per_s"] = part["bytes"].sum() / part["copy_s"].sum() / GIB
    if run.get(TRACING):
        result["kv_events"] = len(table(directory, "kv_events"))
    return result


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
