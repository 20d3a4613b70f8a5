"""Cost of a campaign of 10,000 experiments: controller, batch system, shared file system.

    python bench/cluster/campaign.py [--experiments 10000] [--nodes 496] [--write]

The controller, the planner, the ledger, packs' directories and `submitit-pbs` are the real ones,
and their commands reach the fake PBS with Polaris's queues. Nodes are simulated on a virtual clock:
experiments of 5 to 15 minutes take no time. The campaign is run twice: in packs as large as the
nodes allow, and in packs of ten nodes. In its middle the controller is killed with SIGKILL and
started again. `--write` keeps the figures in bench/results/cluster.json.
"""

import argparse
import dataclasses
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
import nodes
from measuring import store
from operations import count

from fake_pbs.queues import POLARIS
from fake_pbs.server import listen, take
from submitit_packs import sites
from submitit_packs.model import Member
from submitit_packs.overview import overview
from submitit_packs.planner import Settings, plan

CYCLE_S = 30.0  # as profiles/polaris has it
SHAPES = {"large packs": None, "packs of ten nodes": 10}
EXPECTED_S = (300.0, 900.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=496)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    campaigns = {
        name: campaign(arguments.experiments, arguments.nodes, most)
        for name, most in SHAPES.items()
    }
    result = {"nodes": arguments.nodes, "gpus_per_node": 4, "campaigns": campaigns}
    print(json.dumps(result, indent=2))
    if arguments.write:
        words = f"--experiments {arguments.experiments} --nodes {arguments.nodes}"
        store("cluster", result, f"python bench/cluster/campaign.py {words}")


def campaign(experiments: int, node_count: int, max_nodes: int | None) -> dict[str, Any]:
    """Run a campaign to its end, with a controller that is killed in its middle; its figures."""
    with memory_directory() as place:
        packs = place / "packs"
        packs.mkdir()
        world = nodes.World()
        load = nodes.Load(world)
        count(packs, load.note)
        nodes.configure(place / "pbs", node_count, POLARIS)
        server = nodes.VirtualServer(place / "pbs", world, load, nodes.Durations())
        write_settings(place, experiments, max_nodes)
        with Controlling(place, server) as controlling:
            figures = Campaign(world, server, controlling, packs, experiments).run()
        return {"planning_cpu_s": planning_s(experiments, max_nodes), **figures, **node_load(load)}


class Campaign:
    """Cycle after cycle, until every experiment has ended once."""

    def __init__(
        self,
        world: nodes.World,
        server: nodes.VirtualServer,
        controlling: "Controlling",
        packs: Path,
        experiments: int,
    ) -> None:
        self.world, self.server, self.controlling = world, server, controlling
        self.packs, self.experiments = packs, experiments
        self.ended: set[str] = set()
        self.cycles: list[dict[str, Any]] = []

    @property
    def operations(self) -> int:
        """The controllers' operations on the shared file system."""
        return sum(cycle["operations"] for cycle in self.cycles)

    def run(self) -> dict[str, Any]:
        """The figures of the controller and of the campaign."""
        began_s = self.world.now_s
        while len(self.ended) < self.experiments / 2:
            self.cycle()
        overview_cpu_s = self.overview_cpu_s()
        restart = self.restart()
        while len(self.ended) < self.experiments:
            self.cycle()
        result = overview(self.packs, now_s=self.world.now_s)
        cpu_s = [cycle["cpu_s"] for cycle in self.cycles]
        asked = [cycle["qstat"] for cycle in self.cycles]
        return {
            "experiments": self.experiments,
            "ended_once": len(self.ended),
            "packs": len(result.packs),
            "hours": (self.world.now_s - began_s) / 3600,
            "node_hours": result.node_hours,
            "slot_idle_share": result.idle_share,
            "controller_tasks": self.controlling.most_tasks,
            "controller_memory_bytes": self.controlling.most_memory_bytes,
            "first_cycle_cpu_s": cpu_s[0],
            "cycle_cpu_s": sum(cpu_s[1:]) / len(cpu_s[1:]),
            "qsub_calls": self.server.counts["qsub"],
            "qstat_calls_a_cycle": max(asked),
            "controller_operations_s": self.operations / (len(self.cycles) * CYCLE_S),
            "overview_cpu_s": overview_cpu_s,
            "restart": restart,
        }

    def overview_cpu_s(self) -> float:
        """CPU seconds of a look at all packs, as `kvscope status` takes it."""
        began = time.process_time()
        overview(self.packs, now_s=self.world.now_s)
        return time.process_time() - began

    def cycle(self) -> None:
        """Let half a minute pass, and the controller look once."""
        for _ in range(3):
            self.world.advance(self.world.now_s + CYCLE_S / 3)
            self.server.tick()
            self.server.load.node = ""
        before = self.server.counts.get("qstat", 0)
        answer = self.controlling.cycle(self.world.now_s)
        assert not answer["failed"], answer["failed"]
        for key in answer["ok"]:
            assert key not in self.ended, f"{key} ended twice"
            self.ended.add(key)
        answer["qstat"] = self.server.counts.get("qstat", 0) - before
        self.cycles.append(answer)

    def restart(self) -> dict[str, Any]:
        """Kill the controller and start a new one."""
        submitted = self.server.counts["qsub"]
        self.controlling.kill()
        left = [m for m in members(self.experiments) if m.key not in self.ended]
        write_members(self.controlling.place, left)
        attached = self.controlling.start()
        self.cycle()
        return {
            "left": len(left),
            "attached": attached,
            "qsub_calls": self.server.counts["qsub"] - submitted,
        }


class Controlling:
    """The controller's process, and what it takes; its commands are answered meanwhile."""

    def __init__(self, place: Path, server: nodes.VirtualServer) -> None:
        self.place, self.server = place, server
        self.listener = listen(str(place / "pbs"))
        self.most_tasks = self.most_memory_bytes = 0
        self.operations = 0
        self.start()

    def __enter__(self) -> "Controlling":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.listener.close()

    def start(self) -> int:
        """Start a controller; how many members it found in packs."""
        files = [self.place / name for name in ("packs", "members.json", "settings.json")]
        path = f"{self.place / 'pbs' / 'bin'}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "controller.py"), *map(str, files)],
            env=os.environ | {"PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.operations = 0
        threading.Thread(target=self._watch, args=(self.process,), daemon=True).start()
        attached: int = self._answer()["attached"]
        return attached

    def kill(self) -> None:
        """End the controller as kill -9 does."""
        self.process.kill()
        self.process.communicate()

    def cycle(self, now_s: float) -> dict[str, Any]:
        """Let the controller look once at a time."""
        assert self.process.stdin
        self.process.stdin.write(f"{now_s}\n")
        self.process.stdin.flush()
        answer = self._answer()
        total = sum(answer["operations"].values())
        answer["operations"], self.operations = total - self.operations, total
        return answer

    def _answer(self) -> dict[str, Any]:
        """The controller's next line; until then its commands are answered."""
        assert self.process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            selector.register(self.listener, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self.listener in ready:
                    take(self.listener, self.server)
                if self.process.stdout in ready:
                    line = self.process.stdout.readline()
                    assert line, "the controller ended"
                    answer: dict[str, Any] = json.loads(line)
                    return answer

    def _watch(self, process: "subprocess.Popen[str]") -> None:
        """Threads of the controller and of the commands that it runs, and its memory."""
        result = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                tasks = sum(p.num_threads() for p in [result, *result.children(recursive=True)])
                self.most_tasks = max(self.most_tasks, tasks)
                peak = result.memory_info().rss
                self.most_memory_bytes = max(self.most_memory_bytes, peak)
            except psutil.Error:
                pass  # it ended between two looks
            time.sleep(0.01)


def write_settings(place: Path, experiments: int, max_nodes: int | None) -> None:
    """Write what the controller is given."""
    settings = {"queues": ["prod"], "max_nodes": max_nodes}
    (place / "settings.json").write_text(json.dumps(settings))
    write_members(place, members(experiments))


def write_members(place: Path, todo: list[Member]) -> None:
    """Write the members that are not done."""
    (place / "members.json").write_text(json.dumps([dataclasses.asdict(m) for m in todo]))


def members(experiments: int) -> list[Member]:
    """Members as long as those of kvscope, which take 5 to 15 minutes."""
    draw = random.Random(0)
    command = "/eagle/project/user/kvscope/.venv/bin/python -m kvscope.cli run collect analyse " * 6
    return [
        Member(key, key, command, "/eagle/project/user/kvscope", time_s, 2 * time_s + 300)
        for key in (f"llama-zipf-recompute-{i:010x}" for i in range(experiments))
        for time_s in [draw.uniform(*EXPECTED_S)]
    ]


def planning_s(experiments: int, max_nodes: int | None) -> float:
    """CPU seconds of planning all experiments at once."""
    todo = members(experiments)
    began = time.process_time()
    plan(todo, sites.load("polaris"), Settings(queues=("prod",), max_nodes=max_nodes))
    return time.process_time() - began


def node_load(load: nodes.Load) -> dict[str, float]:
    """Metadata operations a second of the node with the most: on average, in its worst minute."""
    totals: Counter[str] = Counter()
    minutes: Counter[str] = Counter()
    for (node, _), operations in load.by_minute.items():
        totals[node] += operations
        minutes[node] += 1
    return {
        "node_operations_s": max(totals[n] / (60 * minutes[n]) for n in totals),
        "node_operations_s_worst_minute": max(load.by_minute.values()) / 60,
    }


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory in memory if there is one, because the time of a disk is not measured here."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="campaign", dir=parent) as place:
        yield Path(place)


if __name__ == "__main__":
    main()
