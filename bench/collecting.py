"""Parts that the benchmarks of collecting share: a generated file, collected in its own process."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvscope.base.files import write_json

RESULTS = Path(__file__).parent / "results"
Options = argparse.Namespace


def bench(
    parser: argparse.ArgumentParser,
    generate: Callable[[Path, Options], None],
    measure: Callable[[Path, Path], dict[str, Any]],
    packages: Sequence[str],
) -> None:
    """Print what collecting a generated file takes; `--write` keeps it by this program's name.

    `measure` collects the file to a directory, in the other process, and gives the figures.
    """
    program = Path(sys.argv[0])
    results = RESULTS / f"{program.stem}.json"
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {results.name}")
    parser.add_argument("--before", type=Path, help="a checkout of kvscope to measure first")
    parser.add_argument("--collect", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        print(json.dumps(measure(*options.collect)))
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        generate(made, options)
        circumstances = _machine()
        command = [sys.executable, str(program), "--collect", str(made), str(Path(folder) / "out")]
        before = _figures(command, options.before) if options.before else None
        result = {
            "command": " ".join((f"python bench/{program.name}", *sys.argv[1:])),
            "machine": circumstances,
            "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
            "file_bytes": made.stat().st_size,
            **_figures(command),
            **({"before": before} if before else {}),
        }
    for key, value in result.items():
        print(f"{key:26} {value}")
    if options.write:
        write_json(results, result)


def _figures(command: Sequence[str], checkout: Path | None = None) -> dict[str, Any]:
    """What the program prints in a process of its own, with the kvscope of a checkout if given."""
    path = {"PYTHONPATH": str((checkout / "src").resolve())} if checkout else {}
    child = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | path
    )
    figures: dict[str, Any] = json.loads(child.stdout)
    return figures


def peak_mb() -> int:
    """The peak of this process's memory so far, as Linux counts it for this process alone."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return round(peak * 1024 / 1e6)


def parquet_bytes(out: Path) -> int:
    """Bytes of the tables of a directory."""
    return sum(file.stat().st_size for file in out.glob("*.parquet"))


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "")
    return {
        "cpu": cpu or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "load_average": round(os.getloadavg()[0], 1),  # other work makes wall times longer
    }
