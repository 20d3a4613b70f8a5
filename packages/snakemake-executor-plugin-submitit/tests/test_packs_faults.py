"""Whatever operation on files a controller dies at, or is refused: nothing is lost or done twice.

Every operation of a small campaign is tried, one after the other: of the ledger, the plan, the
submission, job.json, the listings, and the end of a pack whose job was preempted.
"""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from faults import FAULTS
from stand_in import Killed
from submitit_packs import controller as controllers
from submitit_packs.directory import State
from submitit_packs.schedulers import Ending
from test_packs_controller import Campaign


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for name in ("GRACE_S", "VANISHED_S", "FULL_S"):
        monkeypatch.setattr(controllers, name, 0.0)


class Faulty(Campaign):
    """A campaign whose controller, and nothing else, meets faults."""

    def cycle(self):
        with FAULTS.armed():
            return super().cycle()


def go_through(campaign: Campaign) -> None:
    """Submit, let one job be preempted, submit again, and end well."""
    for _ in range(40):
        if len(campaign.ended) == len(campaign.members):
            return
        campaign.cycle()
        for job in campaign.system.live():
            if campaign.system.began:
                campaign.system.run(job)
                campaign.system.end(job)
            else:
                campaign.system.run(job, {"m0": State.KILLED, "m1": None})
                campaign.system.end(job, Ending.PREEMPTED, "preempted")
    pytest.fail(f"{len(campaign.ended)} of {len(campaign.members)} ended")


def operations(path: Path) -> int:
    """How many operations of the controller there are, without faults."""
    campaign = Faulty(path)
    FAULTS.prepare(path, 0, Killed())
    go_through(campaign)
    campaign.controller.close()
    return FAULTS.seen


def assert_all_ended_once(campaign: Campaign) -> None:
    assert campaign.ended.keys() == {m.key for m in campaign.members}
    assert all(outcome.ok for outcome in campaign.ended.values()), campaign.ended
    submitted = Counter(job.pack.id for job in campaign.system.jobs.values())
    assert set(submitted.values()) == {1}, "a pack was submitted twice"
    began = {"m0": 2, "m1": 2, "m2": 1, "m3": 1, "m4": 1, "m5": 1}
    assert campaign.system.began == began, "something finished was redone, or not"


def test_a_controller_that_is_killed_at_any_operation(tmp_path):
    count = operations(tmp_path / "count")
    assert count > 30
    for number in range(1, count + 1):
        root = tmp_path / f"packs-{number}"
        campaign = Faulty(root)
        FAULTS.prepare(root, number, Killed())
        with pytest.raises(Killed):
            go_through(campaign)
        campaign.restart()
        go_through(campaign)
        assert_all_ended_once(campaign)
        campaign.controller.close()


def test_a_disk_that_refuses_any_operation_is_waited_for(tmp_path):
    count = operations(tmp_path / "count")
    for number in range(1, count + 1):
        root = tmp_path / f"packs-{number}"
        campaign = Faulty(root)
        full = OSError(errno.ENOSPC, "No space left on device", str(root / "some.file"))
        FAULTS.prepare(root, number, full)
        go_through(campaign)
        assert_all_ended_once(campaign)
        campaign.controller.close()
