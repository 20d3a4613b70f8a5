"""Each way to end has its reason, and what goes on has none."""

import pytest

from submitit_pbs.reasons import Ending, reason, waiting
from submitit_pbs.status import JobStatus
from transcripts import RAN, attributes

HELD = "job held, too many failed attempts to run"


def status(**changes) -> JobStatus:
    return JobStatus("1", attributes(**changes))


@pytest.mark.parametrize(
    ("ended", "ending", "words"),
    [
        (dict(Exit_status=0), Ending.SUCCEEDED, "succeeded"),
        (dict(Exit_status=3), Ending.FAILED, "failed with exit code 3"),
        (
            dict(Exit_status=-29, comment=f"{RAN} and exceeded resource walltime"),
            Ending.WALLTIME,
            "walltime exceeded (Exit_status -29)",
        ),
        (
            dict(Exit_status=-27, comment=f"{RAN} and exceeded resource mem"),
            Ending.MEMORY,
            "mem exceeded (Exit_status -27)",
        ),
        (
            dict(Exit_status=271, comment=f"{RAN} and terminated by ada@login01"),
            Ending.CANCELLED,
            "deleted by ada (Exit_status 271)",
        ),
        (
            dict(Exit_status=265, comment=f"{RAN} and terminated by root@pbs01"),
            Ending.CANCELLED,
            "deleted by root (Exit_status 265)",
        ),
        (
            dict(Exit_status=271, comment=f"{RAN} and terminated by Scheduler@pbs01"),
            Ending.PREEMPTED,
            "preempted by the scheduler (Exit_status 271)",
        ),
        (
            dict(Exit_status=271, comment=f"{RAN} and failed"),
            Ending.FAILED,
            "killed by SIGTERM (Exit_status 271)",
        ),
        (
            dict(Exit_status=-20, comment=f"{RAN} and failed"),
            Ending.NODE_LOST,
            "its first node was lost (Exit_status -20)",
        ),
        (
            dict(job_state="H", Hold_Types="s", Exit_status=-3, comment=HELD, run_count=21),
            Ending.HELD,
            "held after 21 failed starts",
        ),
        (
            dict(Exit_status=-3, comment=f"{HELD} and terminated", run_count=21),
            Ending.HELD,
            "held after 21 failed starts",
        ),
        (
            dict(comment="Not Running: and terminated"),
            Ending.CANCELLED,
            "deleted before it ran",
        ),
        (dict(comment=""), Ending.UNKNOWN, "ended, and PBS does not say how"),
        (dict(job_state="X", Exit_status=1), Ending.FAILED, "failed with exit code 1"),
    ],
)
def test_how_a_job_ended(ended, ending, words):
    result = reason(status(**ended))
    assert result is not None
    assert (result.ending, str(result)) == (ending, words)


def test_the_jobs_output_tells_of_a_lost_node():
    job = status(Exit_status=271, comment=f"{RAN} and failed")
    output = "working\n=>> PBS: job killed: node 1 (node02) requested job die, code 15009\n"
    result = reason(job, output)
    assert result is not None
    assert result.ending is Ending.NODE_LOST
    assert "node 1 (node02) requested job die" in result.words


@pytest.mark.parametrize(
    "going_on",
    [
        dict(job_state="Q"),
        dict(job_state="Q", Exit_status=-11),  # preempted, and to run again
        dict(job_state="R", Exit_status=-20, run_count=2),
        dict(job_state="E", Exit_status=0),
        dict(job_state="H", Hold_Types="u"),
        dict(job_state="S"),
        dict(job_state="B"),
    ],
)
def test_a_job_that_goes_on_has_no_reason_yet(going_on):
    assert reason(status(**going_on)) is None


def test_every_exit_status_has_words_that_name_it():
    for code in range(-40, 300):
        result = reason(status(Exit_status=code, comment=f"{RAN} and failed"))
        assert result is not None
        assert (result.ending is Ending.SUCCEEDED) == (code == 0)
        assert code == 0 or str(code) in result.words


def test_why_a_job_waits():
    assert waiting(status(job_state="Q", comment="Not Running: Not enough free nodes")) == (
        "Not Running: Not enough free nodes"
    )
    assert waiting(status(job_state="H", Hold_Types="u", comment="")) == "held by its user"
    assert waiting(status(job_state="R")) == ""
