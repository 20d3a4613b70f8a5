"""`run.json`: what happened in one run. Written last; a run without it never finished."""

from pathlib import Path
from typing import Any

from kvscope.files import read_json, sha256_of, write_json

RUN_FILE = "run.json"
SESSION_FILE = "session.json"  # from the measured process to its supervisor
RUN_SCHEMA = 1
KERNEL_EVENTS = "kernel_events.jsonl.zst"
SPOOL = "kernel_events.tmp"  # a repeat's KV events as the kernels wrote them; gone after the run
IMPORTED_FROM = "imported_from"  # key that only the record of a run made elsewhere has
TRACING = "tracing"  # key that only the record of a run with KV events has
COMPLETE, FAILED = "complete", "failed"

# Every file a run may leave and that run.json vouches for, in the order of results' layout.
RECORDED_FILES = (
    "experiment.yaml",
    "workload.parquet",
    "requests.parquet",
    "steps.parquet",
    "batch.parquet",
    "preemptions.parquet",
    "layers.parquet",
    KERNEL_EVENTS,
    "trace.nsys-rep",
    "trace.sqlite",
)


def recorded_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every recorded file that is there."""
    present = [directory / name for name in RECORDED_FILES if (directory / name).exists()]
    return {p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in present}


def write_run(directory: Path, facts: dict[str, Any]) -> None:
    """Write run.json, atomically."""
    write_json(directory / RUN_FILE, {"schema": RUN_SCHEMA} | facts)


def read_run(directory: Path) -> dict[str, Any]:
    """Read run.json; BadInput if it is absent or damaged."""
    facts: dict[str, Any] = read_json(directory / RUN_FILE)
    return facts


def is_complete(directory: Path, experiment_id: str) -> bool:
    """Whether a run of this experiment is here, finished, with every file at its size."""
    if not (directory / RUN_FILE).exists():
        return False
    facts = read_run(directory)
    return (
        facts.get("status") == COMPLETE
        and facts.get("experiment_id") == experiment_id
        and all(
            (directory / name).exists() and (directory / name).stat().st_size == file["bytes"]
            for name, file in facts["files"].items()
        )
    )


def tables_directory(run: Path) -> Path:
    """Where a run's tables go: results/tables/<id> of results/experiments/<id>, or in the run."""
    run = run.resolve()
    return run.parent.parent / "tables" / run.name if run.parent.name == "experiments" else run
