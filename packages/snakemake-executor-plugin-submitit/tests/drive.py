"""A controller as a process of its own, to be killed: python drive.py DIRECTORY.

It reads `members.json` there, and appends a line to `ended.jsonl` for each member that ended.
"""

import json
import sys
import time
from pathlib import Path

from submitit_packs import schedulers, sites
from submitit_packs.controller import Controller
from submitit_packs.model import Member
from submitit_packs.planner import Settings


def main(root: Path) -> None:
    plain = json.loads((root / "members.json").read_text())
    settings = Settings(**plain["settings"] | {"queues": tuple(plain["settings"]["queues"])})
    members = [Member(**member) for member in plain["members"]]
    with (root / "ended.jsonl").open("a+") as ended:
        ended.seek(0)
        done = {json.loads(line)["key"] for line in ended}
        controller = Controller(
            root / "packs", sites.load("slurm"), settings, schedulers.of("slurm")
        )
        print("attached:", len(controller.add(m for m in members if m.key not in done)))
        while not controller.is_idle:
            outcomes = controller.cycle()
            for outcome in outcomes:
                line = {"key": outcome.key, "ok": outcome.ok, "words": outcome.words}
                ended.write(json.dumps(line) + "\n")
            ended.flush()
            controller.reported(outcomes)
            time.sleep(0.5)
        controller.finish()
        controller.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
