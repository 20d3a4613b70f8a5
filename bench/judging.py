"""Cost of oracles: seconds and memory for those of a run, and the time that the run took.

    python bench/judging.py RUN… [--write]

RUN is a run's directory. The oracles of tables and of the engine are timed, and those of KV events
anew from the raw file if there is one; each the fastest of three times. Memory is what Python
allocated at most while they ran, NumPy's arrays included.
"""

import argparse
import time
import tracemalloc
from pathlib import Path
from typing import Any

from measuring import store

from kvscope.judge.checklist import checklist
from kvscope.judge.records import read_records

TIMES = 3


def judging(run: Path) -> dict[str, Any]:
    """Seconds and bytes of one run's checklist."""
    seconds = []
    for _ in range(TIMES):
        records = read_records(run)
        began = time.process_time()
        verdicts = checklist(records)
        seconds.append(time.process_time() - began)
    tracemalloc.start()
    checklist(records)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    took_s = records.facts["timings_s"]["total"]
    return {
        "experiment_id": records.facts["experiment_id"],
        "passes": len(records.steps),
        "rows": len(records.batch),
        "oracles": len(verdicts),
        "judging_s": min(seconds),
        "run_s": took_s,
        "share": min(seconds) / took_s,
        "peak_bytes": peak_bytes,
    }


def main() -> None:
    """Print a line a run; with --write keep them in bench/results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    results = [judging(run) for run in arguments.runs]
    for result in results:
        took = f"{result['judging_s']:.2f} s of CPU for {result['oracles']} oracles"
        share = f"{result['share']:.1%} of the run's {result['run_s']:.0f} s"
        print(f"{result['experiment_id']}: {took}, {share}, {result['peak_bytes'] / 1e6:.1f} MB")
    if arguments.write:
        store("judging", {"runs": results}, "python bench/judging.py RUN…")


if __name__ == "__main__":
    main()
