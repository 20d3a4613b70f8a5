"""The watcher keeps the states of all jobs, and its calm when PBS does not answer."""

from collections.abc import Iterable

import pytest

from submitit_pbs import client, watcher
from submitit_pbs.status import JobStatus
from submitit_pbs.watcher import PBSInfoWatcher


class PBS:
    """Answers of qstat, the times at which it was asked, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls: list[float] = []
        self.asked: set[str] = set()
        self.jobs: dict[str, str] = {}
        self.failure: Exception | None = None

    def status(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        self.calls.append(self.now)
        self.asked = set(job_ids)
        if self.failure:
            raise self.failure
        return {
            job_id: JobStatus(job_id, {"job_state": letter, "Exit_status": "0"})
            for job_id, letter in self.jobs.items()
        }


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> PBS:
    pbs = PBS()
    monkeypatch.setattr(client, "status", pbs.status)
    monkeypatch.setattr("time.time", lambda: pbs.now)
    return pbs


@pytest.fixture
def watching(pbs: PBS) -> PBSInfoWatcher:
    """A watcher of one running job, which has asked once."""
    made = PBSInfoWatcher(delay_s=30)
    pbs.jobs = {"1": "R"}
    assert made.get_state("1") == "RUNNING"
    return made


def test_an_outage_of_hours_changes_no_state_and_costs_few_calls(
    pbs: PBS, watching: PBSInfoWatcher
) -> None:
    pbs.failure = client.ServerUnreachable("cannot connect to server", 255)
    for _ in range(4 * 3600):
        pbs.now += 1
        assert watching.get_state("1") == "RUNNING"
        assert not watching.is_done("1", mode="force")
    gaps = [later - earlier for earlier, later in zip(pbs.calls, pbs.calls[1:], strict=False)]
    assert max(gaps) <= watcher.LONGEST_BACK_OFF_S + 1
    assert len(pbs.calls) < 40
    pbs.failure, pbs.jobs = None, {"1": "F"}
    pbs.now += watcher.LONGEST_BACK_OFF_S
    assert watching.get_state("1") == "COMPLETED"


def test_ended_jobs_are_not_asked_for_again(pbs: PBS, watching: PBSInfoWatcher) -> None:
    watching.register_job("2")
    pbs.jobs = {"1": "F", "2": "R"}
    pbs.now += 60
    assert watching.is_done("1")
    pbs.now += 60
    assert not watching.is_done("2")
    assert pbs.asked == {"2"}
    assert watching.get_state("1") == "COMPLETED"


def test_jobs_that_come_one_after_another_are_asked_for_together(
    pbs: PBS, watching: PBSInfoWatcher
) -> None:
    for number in range(2, 50):
        watching.register_job(str(number))
        watching.get_state(str(number))
    assert len(pbs.calls) == 1
    pbs.now += 3
    watching.get_state("2")
    assert len(pbs.asked) == 49


def test_a_job_that_is_not_known_yet_waits_before_it_has_vanished(pbs: PBS) -> None:
    made = PBSInfoWatcher()
    assert made.get_state("7") == "UNKNOWN"
    pbs.now += watcher.UNKNOWN_GRACE_S / 2
    assert not made.is_done("7")
    pbs.now += watcher.UNKNOWN_GRACE_S
    assert made.get_state("7", mode="force") == "VANISHED"


def test_time_without_an_answer_does_not_make_a_job_vanish(pbs: PBS) -> None:
    made = PBSInfoWatcher()
    pbs.failure = client.ServerUnreachable("", 255)
    assert made.get_state("7") == "UNKNOWN"
    pbs.now += 10 * watcher.UNKNOWN_GRACE_S
    assert not made.is_done("7")


def test_a_subjob_that_is_not_listed_waits_in_its_array(pbs: PBS) -> None:
    made = PBSInfoWatcher()
    pbs.jobs = {"7[]": "Q"}
    for _ in range(3):
        assert made.get_state("7[1]", mode="force") in ("UNKNOWN", "PENDING")
        pbs.now += watcher.UNKNOWN_GRACE_S
    assert not made.is_done("7[1]")
