"""Cost of profiling a repeat: two engines of an experiment, one under the profiler, in rounds.

    python bench/profiler.py [--rounds 12] [--write]

One engine is a fork under Nsight Systems, which captures each of its repeats, with NVTX ranges;
the other one is not under it. The ratio of their times and its 95 % interval are those of
`kvscope.base.rounds`, adjusted for waiting. --write stores them under bench/results/.
"""

import argparse
import math
import random
import tempfile
from pathlib import Path
from typing import Any

from measuring import store

from kvscope.base.files import make_directory, write_text
from kvscope.base.rounds import Rounds, waiting
from kvscope.engine.devices.platform import platform_of
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.run.attempt import read_session, repeats_of
from kvscope.run.capture import CaptureSession
from kvscope.run.engines import Zygote
from kvscope.run.environment import measured_environment
from kvscope.run.profiler import find_nsys
from kvscope.run.rounds import Group, Member, hold_locks
from kvscope.tables.runfile import EXPERIMENT_FILE

ROOT = Path(__file__).parents[1]
OVERRIDES = ["workload=fixed", "workload.num_requests=12", "cache.blocks=48", "profiler=none"]
PLAIN, PROFILED = "plain", "profiled"


def member(experiment: Experiment, directory: Path) -> Member:
    """An attempt of the experiment."""
    make_directory(directory)
    write_text(directory / EXPERIMENT_FILE, dump(experiment))
    return Member(experiment, directory)


def measure(place: Path, rounds: int) -> Rounds:
    """The times of so many rounds of both engines."""
    nsys = find_nsys()
    assert nsys is not None, "Nsight Systems is not installed: make nsys"
    experiment = expand(None, OVERRIDES, ROOT / "config").experiments[0].experiment
    members = {name: member(experiment, place / name) for name in (PLAIN, PROFILED)}
    environment = measured_environment(experiment) | {"TMPDIR": str(place)}
    platform = platform_of(experiment)
    modules = platform.worker_modules
    session = CaptureSession(nsys, platform.profiler_options, environment)
    order = random.Random(0)
    with (
        hold_locks(members.values()),
        Zygote(environment, modules, place / "plain.log") as zygote,
        Zygote(environment, modules, place / "profiled.log", session.prefix) as profiled,
        Group({PLAIN: members[PLAIN]}, zygote) as one,
        Group({PROFILED: members[PROFILED]}, profiled) as other,
    ):
        for number in range(rounds):
            entry = {"round": {"campaign": "0" * 12, "number": number, "place": 0}}
            for name in order.sample([PLAIN, PROFILED], 2):
                if name == PLAIN:
                    one.serve(name, entry)
                    continue
                assert profiled.pid is not None
                with session.capture(profiled.pid, place / f"trace-{number}"):
                    other.serve(name, entry)
            print(f"round {number + 1} of {rounds}", flush=True)
        one.finish()
        other.finish()
    rows = [
        (name, entry)
        for name, each in members.items()
        for entry in repeats_of(read_session(each.directory))
    ]
    return Rounds(
        [name for name, _ in rows],
        [entry["round"]["number"] for _, entry in rows],
        [entry["duration_s"] for _, entry in rows],
        [waiting(entry["ran_s"], entry["waited_s"]) for _, entry in rows],
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured = measure(Path(name), arguments.rounds)
    ratio = measured.ratio(PROFILED, PLAIN)
    waits = sum(1 - math.exp(-each) for each in measured.waiting) / len(measured.waiting)
    result: dict[str, Any] = {
        "rounds": arguments.rounds,
        "ratio": ratio.value,
        "interval": [ratio.low, ratio.high],
        "waiting_share": waits,
    }
    print(result)
    if arguments.write:
        store("profiler", result, f"python bench/profiler.py --rounds {arguments.rounds}")


if __name__ == "__main__":
    main()
