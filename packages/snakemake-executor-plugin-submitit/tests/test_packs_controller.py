"""Every member ends exactly once, whatever becomes of jobs, batch system and controller."""

import dataclasses
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stand_in import Killed, StandIn
from submitit_packs import controller as controllers
from submitit_packs import directory as directories
from submitit_packs import planner
from submitit_packs.controller import Controller, Outcome
from submitit_packs.directory import State
from submitit_packs.errors import PackError, QueueFull, SubmissionRefused
from submitit_packs.ledger import Ledger
from submitit_packs.model import Member
from submitit_packs.overview import overview
from submitit_packs.planner import Settings
from submitit_packs.queue import Queue
from submitit_packs.schedulers import Ending, JobStatus, Phase
from submitit_packs.sites import Site

SITE = Site("here", "stand-in", gpus_per_node=2, queues=(Queue("q", 1, 4, max_jobs=3),))
SETTINGS = Settings(length_s=1000)


@pytest.fixture(autouse=True, scope="module")
def hurry():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(controllers, "GRACE_S", 0.0)
        patch.setattr(controllers, "VANISHED_S", 0.0)
        patch.setattr(controllers, "FULL_S", 0.0)
        yield


def members(count: int) -> list[Member]:
    return [Member(f"m{i}", f"member {i}", "true", "/", 300, 600) for i in range(count)]


class Campaign:
    """A stand-in, and controllers over it, one after the other."""

    def __init__(self, root: Path, count: int = 6) -> None:
        self.root, self.members = root, members(count)
        self.system = StandIn()
        self.said: list[str] = []
        self.ended: dict[str, Outcome] = {}
        self.controller = self.begin()

    def begin(self) -> Controller:
        controller = Controller(self.root, SITE, SETTINGS, self.system, self.said.append)
        self.attached = controller.add(m for m in self.members if m.key not in self.ended)
        return controller

    def restart(self) -> None:
        self.controller.close()
        self.controller = self.begin()

    def cycle(self) -> list[Outcome]:
        outcomes = self.controller.cycle()
        for outcome in outcomes:
            assert outcome.key not in self.ended, "ended twice"
            self.ended[outcome.key] = outcome
        self.controller.reported(outcomes)
        return outcomes

    def finish(self, cycles: int = 50) -> None:
        """Run whatever is submitted, well, until all members have ended."""
        for _ in range(cycles):
            if len(self.ended) == len(self.members):
                return
            self.cycle()
            for job in self.system.live():
                self.system.run(job)
                self.system.end(job)
        pytest.fail(f"{len(self.ended)} of {len(self.members)} ended")

    def reasons(self) -> list[str]:
        return [outcome.words for outcome in self.ended.values()]


@pytest.fixture
def campaign(tmp_path):
    campaign = Campaign(tmp_path / "packs")
    yield campaign
    campaign.controller.close()


def test_all_members_run_once(campaign):
    campaign.finish()
    assert campaign.system.began == {m.key: 1 for m in campaign.members}
    assert all(outcome.ok for outcome in campaign.ended.values())
    assert campaign.controller.is_idle


def test_one_status_command_a_cycle(campaign):
    for _ in range(5):
        campaign.cycle()
    assert campaign.system.calls["status"] == 4  # none before the first submission
    assert campaign.system.calls["find"] == 0


def test_a_failing_member_costs_no_other(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {"m1": State.FAILED, "m2": State.TIMEOUT})
    campaign.cycle()
    ended = {key: outcome.ok for key, outcome in campaign.ended.items()}
    assert ended == {f"m{i}": i not in (1, 2) for i in range(6)}
    assert "failed: was failed (on n1 GPU 0, 1 s)" in campaign.ended["m1"].words


@pytest.mark.parametrize(
    ("ending", "words", "again"),
    [
        (Ending.PREEMPTED, "preempted", True),
        (Ending.NODE_LOST, "a node failed", True),
        (Ending.DONE, "completed", True),  # lost with a manager, or with the launcher
        (Ending.WALLTIME, "walltime exceeded (Exit_status -29)", False),
        (Ending.CANCELLED, "cancelled by ada", False),
        (Ending.NOT_STARTED, "held after 21 failed starts", False),
        (Ending.MEMORY, "out of memory", False),
    ],
)
@pytest.mark.parametrize("left", [State.KILLED, None])
def test_how_a_job_ends_decides_about_its_members(campaign, ending, words, again, left):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {"m0": left, "m1": left})
    campaign.system.end(job, ending, words)
    campaign.cycle()
    assert campaign.ended.keys() >= {f"m{i}" for i in range(2, 6)}
    if again:
        campaign.finish()
        assert campaign.system.began == {
            m.key: 2 if m.key in ("m0", "m1") else 1 for m in campaign.members
        }
    else:
        assert {campaign.ended[key].words.partition(" (pack")[0] for key in ("m0", "m1")} == {words}


@pytest.mark.parametrize("ending", [Ending.WALLTIME, Ending.MEMORY])
def test_a_member_still_in_line_when_its_job_reaches_a_limit_runs_again(campaign, ending):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {"m0": None}, skipped=["m1"])
    campaign.system.end(job, ending, "walltime exceeded (Exit_status -29)")
    campaign.finish()
    assert not campaign.ended["m0"].ok
    assert campaign.ended["m1"].ok
    assert campaign.system.began["m0"] == campaign.system.began["m1"] == 1


def test_a_job_that_reaches_its_walltime_with_no_member_begun_does_not_run_again(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.end(job, Ending.WALLTIME, "walltime exceeded (Exit_status -29)")
    campaign.cycle()
    assert len(campaign.ended) == len(campaign.members)
    assert not any(outcome.ok for outcome in campaign.ended.values())


def test_a_deferred_member_runs_again_but_not_for_ever(campaign):
    for _ in range(20):
        campaign.cycle()
        for job in campaign.system.live():
            campaign.system.run(job, {"m0": State.DEFERRED})
            campaign.system.end(job)
    assert campaign.system.began["m0"] == 6
    assert campaign.ended["m0"].words.startswith("deferred: was deferred; it ran 6 times")


def test_a_pack_that_cannot_start_does_not_start_again(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    folder = campaign.system.jobs[job].directory.path / "submitit"
    folder.mkdir()
    (folder / "1_0_log.out").write_text("No module named 'parsl'\n")
    campaign.system.end(job)
    campaign.cycle()
    assert len(campaign.ended) == 6
    assert campaign.reasons()[0].startswith("its pack could not start: No module named 'parsl'")


@pytest.mark.parametrize("pilot", [None, {"is_launcher_killed": True}])
def test_a_pack_that_was_killed_while_it_started_starts_again(campaign, pilot):
    campaign.cycle()
    (job,) = campaign.system.live()
    directory = campaign.system.jobs[job].directory
    number = directory.begin_attempt()
    if pilot:
        directories.write_json(directory.path / f"pilot-{number}.json", pilot)
    campaign.system.end(job, words="failed")
    campaign.finish()
    assert campaign.system.began.total() == 6
    assert all(outcome.ok for outcome in campaign.ended.values())


def test_a_requeued_job_is_the_same_job(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {"m0": State.KILLED, "m1": None})
    campaign.cycle()
    campaign.system.run(job)  # the batch system starts it again
    campaign.cycle()
    assert len(campaign.ended) == 6
    assert campaign.system.began == {"m0": 2, "m1": 2, "m2": 1, "m3": 1, "m4": 1, "m5": 1}
    assert len(campaign.system.jobs) == 1


def test_a_job_that_vanished_is_over(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.forget(job)
    campaign.cycle()
    campaign.cycle()
    assert all("could not start" in words for words in campaign.reasons())
    assert len(campaign.ended) == 6


def test_an_outage_is_no_failure(campaign):
    campaign.cycle()
    campaign.system.is_down = True
    for _ in range(20):
        campaign.cycle()
    assert campaign.controller.no_answer == 20
    assert len(campaign.said) < 8
    campaign.system.is_down = False
    campaign.finish()
    assert campaign.system.began.total() == 6


def test_an_outage_at_submission_submits_once(campaign):
    campaign.system.is_down = True
    campaign.cycle()
    campaign.cycle()
    campaign.system.is_down = False
    campaign.finish()
    assert campaign.system.began.total() == 6
    assert len(campaign.system.jobs) == 1


def test_a_refused_pack_is_one_message(campaign):
    campaign.system.refuses = SubmissionRefused("Job violates queue and/or server resource limits")
    campaign.cycle()
    (message,) = campaign.said
    assert message.endswith("submission refused: Job violates queue and/or server resource limits")
    assert len(campaign.ended) == 6


def test_a_full_queue_waits(campaign):
    campaign.system.refuses = QueueFull("would exceed queue generic's per-user limit")
    campaign.cycle()
    campaign.cycle()
    assert campaign.ended == {}
    assert len(list(campaign.root.glob("pack-*"))) == 0
    campaign.system.refuses = None
    campaign.finish()


def test_a_queue_that_stays_full_is_tried_less_and_less_often(campaign, monkeypatch):
    """For a day: neither the batch system nor the ledger notices much of it."""
    now = [1e9]
    monkeypatch.setattr(controllers, "FULL_S", 60.0)
    campaign.controller.clock = lambda: now[0]
    campaign.system.refuses = QueueFull("would exceed queue generic's per-user limit")
    for _ in range(24 * 120):
        campaign.cycle()
        now[0] += 30
    assert campaign.system.calls["submit"] < 100
    assert len(campaign.controller.ledger.path.read_text().splitlines()) < 100
    campaign.system.refuses = None
    now[0] += controllers.LONGEST_FULL_S
    campaign.finish()
    assert campaign.system.began.total() == 6


def test_members_of_a_full_queue_go_to_another(tmp_path):
    """A queue may be full of other users' jobs, or of jobs that were submitted elsewhere."""
    site = dataclasses.replace(SITE, queues=(Queue("q", 1, 4), Queue("other", 1, 4)))
    result = planner.plan(members(6), site, SETTINGS, full={"q"})
    assert {pack.queue for pack in result.packs} == {"other"}
    result = planner.plan(members(6), site, SETTINGS, full={"q", "other"})
    assert set(result.waiting.values()) == {"waits for queue q, which is full"}


def test_a_queues_number_of_jobs_is_kept(tmp_path):
    campaign = Campaign(tmp_path, 300)
    most = 0
    while len(campaign.ended) < 300:
        campaign.cycle()
        most = max(most, len(campaign.system.live()))
        for job in campaign.system.live()[:1]:
            campaign.system.run(job)
            campaign.system.end(job)
    assert most == 3
    assert any("waits for queue q, which takes 3 jobs" in line for line in campaign.said)


def test_a_member_that_no_queue_takes_fails_alone(tmp_path):
    campaign = Campaign(tmp_path)
    campaign.controller.add([Member("big", "big", "true", "/", 1, 1, gpus=3)])
    campaign.members.append(Member("big", "big", "true", "/", 1, 1, gpus=3))
    campaign.finish()
    assert campaign.ended["big"].words == "big needs 3 GPUs on a node, and a node of here has 2"
    assert sum(o.ok for o in campaign.ended.values()) == 6


def test_a_second_controller_is_refused(campaign):
    with pytest.raises(PackError, match=f"process {os.getpid()} on .* submits from here"):
        campaign.begin()


def test_a_restart_attaches_to_running_jobs_and_to_those_that_ended_meanwhile(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.restart()
    assert len(campaign.attached) == 6
    campaign.system.run(job, {"m0": None, "m1": State.FAILED})
    campaign.controller.close()
    campaign.system.end(job)
    campaign.controller = campaign.begin()
    assert set(campaign.attached) == {"m0", "m2", "m3", "m4", "m5"}  # what failed runs anew
    campaign.finish()
    assert campaign.system.began == {"m0": 2, "m1": 2, "m2": 1, "m3": 1, "m4": 1, "m5": 1}


def test_members_of_a_job_that_waits_again_are_queued(campaign):
    """Its node died, or it was preempted: the files tell of an attempt that is over."""
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, dict.fromkeys(["m1", "m2", "m3", "m4", "m5"]))  # m0 has ended
    campaign.cycle()
    running = overview(campaign.root)
    assert states(running) == ["ok", *["running"] * 5]
    campaign.system.jobs[job].status = JobStatus(Phase.QUEUED, words="BeginTime")
    for restart in (False, True):  # whoever looks, and without anybody who looks
        campaign.cycle()
        result = overview(campaign.root)
        assert states(result) == ["ok", *["queued"] * 5]
        assert {(m.host, m.busy_s(1e9)) for m in list(result.members.values())[1:]} == {("", 0.0)}
        assert result.left_s is None, "it waits for nodes"
        assert result.packs[0].end_s is not None, "no node is used"
        if restart:
            campaign.restart()
    campaign.system.run(job, dict.fromkeys(["m1", "m2", "m3", "m4", "m5"]))
    assert states(overview(campaign.root)) == ["ok", *["running"] * 5]  # nobody has looked yet
    campaign.cycle()
    assert states(overview(campaign.root)) == ["ok", *["running"] * 5]
    assert overview(campaign.root).packs[0].end_s is None


def test_a_late_answer_that_a_job_waits_is_put_right(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, dict.fromkeys(m.key for m in campaign.members))
    campaign.system.jobs[job].status = JobStatus(Phase.QUEUED)
    campaign.cycle()
    campaign.system.jobs[job].status = JobStatus(Phase.RUNNING, nodes=("n1",))
    campaign.cycle()
    assert states(overview(campaign.root)) == ["running"] * 6


def states(found):
    return [found.members[f"m{i}"].state for i in range(6)]


def test_a_reported_end_is_no_more_the_controllers(campaign):
    campaign.finish()
    campaign.ended.clear()
    campaign.restart()
    assert campaign.attached == []  # the user wants them once more
    campaign.finish()
    assert campaign.system.began.total() == 12


def test_a_member_that_is_wanted_anew_runs_again(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job)
    campaign.controller.close()
    again = Controller(campaign.root, SITE, SETTINGS, campaign.system, campaign.said.append)
    assert again.add(campaign.members, fresh=["m0"]) == ["m1", "m2", "m3", "m4", "m5"]
    again.close()


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_controller_that_dies_while_it_submits(campaign, dies):
    campaign.system.dies = dies
    with pytest.raises(Killed):
        campaign.cycle()
    campaign.system.dies = ""
    campaign.restart()
    campaign.finish()
    assert campaign.system.began.total() == 6
    assert len(campaign.system.jobs) == 1


@given(
    kills=st.lists(st.integers(0, 12), max_size=4),
    fates=st.lists(
        st.sampled_from(["well", "preempted", "lost", "requeued", "down", "forgotten", "slow"]),
        max_size=10,
    ),
)
def test_every_member_ends_once_whatever_happens(kills, fates):
    """The controller dies at any write or command; jobs meet any fate; nothing is done twice."""
    with tempfile.TemporaryDirectory() as root:
        campaign = Campaign(Path(root))
        system = campaign.system
        countdown = itertools.chain(kills, itertools.repeat(10**9))
        left = [next(countdown)]

        def deadly(function):
            def wrapped(*args, **kwargs):
                left[0] -= 1
                if left[0] == 0:
                    left[0] = next(countdown)
                    raise Killed
                return function(*args, **kwargs)

            return wrapped

        def cycle():
            with pytest.MonkeyPatch.context() as here:
                here.setattr(directories, "write_json", deadly(directories.write_json))
                here.setattr(Ledger, "_append", deadly(Ledger._append))
                for name in ("submit", "status", "find"):
                    here.setattr(system, name, deadly(getattr(system, name)))
                try:
                    campaign.cycle()
                except Killed:
                    campaign.restart()

        for fate in fates:
            system.is_down = fate == "down"
            cycle()
            system.is_down = False
            for job in system.live():
                living = [m.key for j in system.live() for m in system.jobs[j].pack.members]
                assert len(living) == len(set(living)), "a member is in two live jobs"
                keys = [m.key for m in system.jobs[job].pack.members]
                lost = dict.fromkeys(keys[::2], State.KILLED)
                if fate == "well":
                    system.run(job)
                    system.end(job)
                elif fate in ("preempted", "lost", "requeued"):
                    system.run(job, lost if fate != "lost" else dict.fromkeys(keys[:1]))
                    if fate == "preempted":
                        system.end(job, Ending.PREEMPTED, "preempted")
                    elif fate == "lost":
                        system.end(job, Ending.NODE_LOST, "a node failed")
        left[0] = 10**9
        campaign.finish()
        for outcome in campaign.ended.values():
            assert outcome.ok or outcome.words.partition(" (pack")[0].endswith("it ran 6 times")
        done = {m.key: 0 for m in campaign.members}
        for path in Path(root).glob("pack-*/*.rc"):
            done[path.stem] += directories.PackDirectory(path.parent).result(path.stem).is_final
        expected = {key: int(outcome.ok) for key, outcome in campaign.ended.items()}
        assert done == expected, "something finished was redone"
        campaign.controller.close()


def test_a_cancelled_member_runs_again_when_it_is_added_again(tmp_path):
    campaign = Campaign(tmp_path)
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {f"m{i}": None for i in range(1, 6)})  # m0 has ended
    campaign.controller.cancel()
    campaign.restart()
    assert campaign.attached == []
    campaign.finish()
    assert all(outcome.ok for outcome in campaign.ended.values())


def test_a_job_that_vanishes_has_that_as_its_reason(tmp_path):
    campaign = Campaign(tmp_path)
    campaign.cycle()
    campaign.system.unknown = "accepted, then unknown"
    for job in campaign.system.live():
        campaign.system.forget(job)
    for _ in range(4):
        campaign.cycle()
    assert {"accepted, then unknown" in o.words for o in campaign.ended.values()} == {True}
