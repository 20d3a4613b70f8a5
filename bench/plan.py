"""Time to plan a study: by Snakemake's dry run, and without a change since the last plan.

    python bench/plan.py [--experiments 1000] [--write]

In a copy of the workflow, a study of N experiments is planned three times: by a first dry
run, which expands it and writes every experiment; by a second one, which finds them written; and
by `manifest.plan_if_changed` alone, as every further start of the workflow does. The result is in
wall and CPU seconds; `manifest.plan_if_changed` is the median of 20 calls. `--write` keeps them in
bench/results/plan.json.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from measuring import store

from kvscope.plan import manifest

ROOT = Path(__file__).parents[1]
WORKFLOW = ("Snakefile", "workflow", "config", "profiles")
STUDY = "title: Many\ngrids: [{{name: many, product: {{seed: [{seeds}]}}}}]\n"
CALLS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        copy_workflow(checkout, arguments.experiments)
        result = {
            "experiments": arguments.experiments,
            "first_dry_run": seconds(lambda: dry_run(checkout)),
            "second_dry_run": seconds(lambda: dry_run(checkout)),
            "unchanged": unchanged(checkout, arguments.experiments),
        }
    print(json.dumps(result, indent=2))
    if arguments.write:
        store("plan", result, f"python bench/plan.py --experiments {arguments.experiments}")


def copy_workflow(checkout: Path, experiments: int) -> None:
    """The workflow, with a study 'many' of `experiments` experiments."""
    for name in WORKFLOW:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    text = STUDY.format(seeds=", ".join(map(str, range(experiments))))
    (checkout / "config" / "study" / "many.yaml").write_text(text, encoding="utf-8")


def dry_run(checkout: Path) -> None:
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "-n", "--quiet"]
    here = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{here}:{os.environ['PATH']}"}
    command += ["--config", "study=many"]
    subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)


def unchanged(checkout: Path, experiments: int) -> dict[str, float]:
    """The median of calls in this process, which has the configuration's files in memory."""

    def ensure() -> None:
        result = manifest.plan_if_changed("many", checkout / "config", checkout / "results")
        assert len(result["experiments"]) == experiments

    calls = [seconds(ensure) for _ in range(CALLS)]
    return {key: median(call[key] for call in calls) for key in calls[0]}


def seconds(work: Callable[[], None]) -> dict[str, float]:
    """Wall and CPU seconds of some work, the processes that it starts included."""
    wall, cpu = time.perf_counter(), cpu_s()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_s() - cpu}


def cpu_s() -> float:
    """CPU seconds so far, of this process and of those that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
