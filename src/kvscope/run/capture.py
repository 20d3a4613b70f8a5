"""Nsight Systems around a run: the command that records it, and the export of what it wrote."""

import subprocess
from pathlib import Path

from kvscope.run.profiler import Nsys

REPORT = "trace.nsys-rep"
SQLITE = "trace.sqlite"
EXPORT_LIMIT_S = 900.0

TRACED = {"cpu": "nvtx", "cuda": "cuda,nvtx"}


def profile_command(nsys: Nsys, device: str, trace: Path, command: list[str]) -> list[str]:
    """The command that runs `command` under nsys and writes `trace`.nsys-rep.

    Sampling and context-switch tracing are both off: either makes some releases of nsys hang.
    CUDA graphs are traced kernel by kernel; by default a whole graph is one row.
    """
    options = [
        f"--trace={TRACED[device]}",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        f"--output={trace}",
    ]
    if device == "cuda":
        options.append("--cuda-graph-trace=node")
    return [str(nsys.path), "profile", *options, *command]


def export(nsys: Nsys, directory: Path) -> str | None:
    """Export the run's report to SQLite; what went wrong in one sentence, or None.

    Whether the report exists is what counts: nsys may exit with 0 and leave none.
    """
    report, sqlite = directory / REPORT, directory / SQLITE
    if not report.exists():
        return "nsys left no report"
    command = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true"]
    try:
        done = subprocess.run(
            [*command, f"--output={sqlite}", str(report)],
            capture_output=True,
            text=True,
            timeout=EXPORT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"nsys export did not finish within {EXPORT_LIMIT_S:.0f} s"
    if not sqlite.exists():
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return f"nsys export left no SQLite file ({' '.join(last)})"
    return None
