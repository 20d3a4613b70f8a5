"""A study by Snakemake, from its settings to its page."""

from typing import Any

import pandas as pd

from kvscope.base.time_sources import MEASURED
from kvscope.base.time_sources import REHEARSED as REHEARSED_TIMES
from kvscope_rehearsal.command import prepare
from smoke.place import REHEARSED, ROOT, WORK, store
from smoke.programs import END_S, python

STUDY = "rehearsal"  # three experiments on device=cuda that a rehearsal can serve, too
DIRECTORY = WORK / "study"
WORDS = ("-m", "snakemake", "--profile", "profiles/local", "--config", f"study={STUDY}")
MARGIN_S = END_S + 5.0  # to read what there is of a study that is ended


def main(seconds: float) -> list[str]:
    """Run the workflow in a directory that has the checkout's files, and results of its own."""
    prepare(DIRECTORY, ROOT)
    code = python([*WORDS], WORK / "snakemake.log", seconds - MARGIN_S, DIRECTORY)
    result = numbers()
    store("study", result)
    faults = [f"snakemake ended with {code}"] if code else []
    faults += ["snakemake was ended at its limit"] if code is None else []
    faults += [] if result["page"] else ["there is no page"]
    if result["valid"] != result["experiments"] or not result["experiments"]:
        faults.append(f"{result['valid']} of {result['experiments']} experiments are valid")
    expected = [REHEARSED_TIMES if REHEARSED else MEASURED]
    if result["experiments"] and result["time_source"] != expected:
        faults.append(f"its times are {result['time_source']}, not {expected}")
    return faults


def numbers() -> dict[str, Any]:
    """Numbers of the workflow's experiments and of valid ones, and whether there is a page."""
    studies = DIRECTORY / "results" / "studies"
    pages = [*studies.glob("*/report.html")]
    result: dict[str, Any] = {"study": STUDY, "page": len(pages) == 1, "experiments": 0, "valid": 0}
    for path in studies.glob("*/metrics.parquet"):
        rows = pd.read_parquet(path).groupby("experiment_id")["valid"].all()
        result |= {"experiments": len(rows), "valid": int(rows.sum())}
        result["time_source"] = sorted(set(pd.read_parquet(path)["time_source"]))
    return result
