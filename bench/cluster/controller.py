"""A controller in a process of its own, on a clock that it is given.

    python controller.py PACKS_DIRECTORY MEMBERS.json SETTINGS.json

A line of its input is the time of a cycle, in seconds since 1970; a line of its output what came of
it. It can be killed at any time.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

from operations import Operations

from submitit_packs import schedulers, sites
from submitit_packs.controller import Controller
from submitit_packs.model import Member
from submitit_packs.planner import Settings


def main(root: Path, members: Path, settings: Path) -> None:
    """Go on until all members have ended, or the input is closed."""
    operations = Operations(root)
    todo = [Member(**plain) for plain in json.loads(members.read_text())]
    how = Settings(**json.loads(settings.read_text()))
    now = [0.0]
    site = dataclasses.replace(sites.load("polaris"), name="virtual")
    scheduler = schedulers.of("pbs", "physics")
    controller = Controller(root, site, how, scheduler, lambda _: None, lambda: now[0])
    attached = controller.add(todo)
    print(json.dumps({"attached": len(attached)}), flush=True)
    for line in sys.stdin:
        now[0], cpu_s = float(line), time.process_time()
        ended = controller.cycle()
        controller.reported(ended)
        answer = {
            "ok": [outcome.key for outcome in ended if outcome.ok],
            "failed": {o.key: o.words for o in ended if not o.ok},
            "packs": len(controller.flights),
            "cpu_s": time.process_time() - cpu_s,
            "operations": dict(operations.counts),
            "idle": controller.is_idle,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
