"""How long the page of a large study takes, and how much memory.

    python bench/report.py [--experiments 100 438 1000] [--write]

Of a study of N modeled experiments those of the first seed are run; the runs of other seeds are
copies of them under their own ids, with times that differ by up to a hundredth. `kvscope report`
makes the page in a process of its own. The result has, for each N, wall and CPU seconds of that
process and of those that draw for it, and the peak resident memory of the largest of them.
`--write` keeps them in bench/results/report.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from measuring import store

from kvscope import tables
from kvscope.base.files import read_json, write_json
from kvscope.base.layout import EXPERIMENT_FILE, experiment_directory, tables_directory
from kvscope.plan import manifest
from kvscope.tables.accounts import ANALYSED, COLLECTED
from kvscope.tables.runfile import RUN_FILE, file_record, run_sha256

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "packages/kvscope-model/src/kvscope_model/config/study/victims.yaml"
KVSCOPE = (sys.executable, "-m", "kvscope.cli")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, nargs="+", default=[100, 438, 1000])
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1), "pages": []}
    for count in given.experiments:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder)
            name = make_results(results, count)
            found["pages"].append({"experiments": count} | measure(name, results))
        print(json.dumps(found["pages"][-1]), flush=True)
    if given.write:
        counts = " ".join(map(str, given.experiments))
        store("report", found, f"python bench/report.py --experiments {counts}")


def measure(study: str, results: Path) -> dict[str, float]:
    """Seconds and peak memory of the processes that make a study's page."""
    begin = time.perf_counter()
    command = [*KVSCOPE, "report", study, "--results", str(results)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return {
        "wall_s": round(time.perf_counter() - begin, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_rss_mb": round(usage.ru_maxrss * 1024 / 1e6),
    }


def make_results(results: Path, count: int) -> str:
    """Plan at least `count` experiments, and give each a run; the study's name."""
    config = results / "config"
    shutil.copytree(ROOT / "config", config)
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    product = study["grids"][0]["product"]
    several = 1
    for values in product.values():
        several *= len(values)
    product["seed"] = list(range(-(-count // several)))
    (config / "study" / "many.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    planned = manifest.plan_if_changed("many", config, results)
    found = planned["experiments"][:count]
    ids = {one["id"] for one in found}
    pairs = {
        key: [pair for pair in of_key if ids.issuperset(pair)]
        for key, of_key in planned["pairs"].items()
    }
    path = manifest.manifest_path("many", results)
    write_json(path, read_json(path) | {"experiments": found, "pairs": pairs})
    run = [*KVSCOPE, "run", "study=many", "seed=0", "--multirun", "--tables"]
    run += ["--results", str(results), "--config-dir", str(config)]
    subprocess.run(run, check=True, stderr=subprocess.DEVNULL)
    give_runs(results, [one["id"] for one in found])
    return "many"


def give_runs(results: Path, ids: Iterable[str]) -> None:
    """Give each experiment that was not run a copy of one of the others' runs, in turns."""
    places = [experiment_directory(results, one) for one in ids]
    done = [place for place in places if (place / RUN_FILE).exists()]
    random = np.random.default_rng(0)
    for number, place in enumerate(one for one in places if one not in done):
        copy_run(done[number % len(done)], place, 1 + random.uniform(0, 0.01))


def copy_run(run: Path, place: Path, slower: float) -> None:
    """Copy a run and its tables to a planned experiment; metrics in seconds are longer."""
    for path in run.iterdir():
        if path.is_file() and path.name not in (EXPERIMENT_FILE, RUN_FILE):
            os.link(path, place / path.name)
    facts = read_json(run / RUN_FILE) | {"experiment_id": place.name}
    facts["files"][EXPERIMENT_FILE] = file_record(place / EXPERIMENT_FILE)
    write_json(place / RUN_FILE, facts)
    made, copy = tables_directory(run), tables_directory(place)
    copy.mkdir(parents=True)
    for path in made.iterdir():
        if path.name not in (COLLECTED, ANALYSED, tables.METRICS.file):
            os.link(path, copy / path.name)
    metrics = tables.read(tables.METRICS, made / tables.METRICS.file)
    metrics["experiment_id"] = place.name
    metrics.loc[metrics["unit"] == "s", "value"] *= slower
    tables.write(tables.METRICS, metrics, copy / tables.METRICS.file)
    for name in (COLLECTED, ANALYSED):
        account = read_json(made / name) | {"run_sha256": run_sha256(place)}
        if tables.METRICS.file in account["files"]:
            account["files"][tables.METRICS.file] = file_record(copy / tables.METRICS.file)
        write_json(copy / name, account)


if __name__ == "__main__":
    main()
