"""Output of qstat becomes statuses, in both of its forms."""

from datetime import datetime

import pytest

from submitit_pbs.status import JobStatus, parse_qstat
from transcripts import ARRAY, attributes, dsv, plain

JOBS = {
    "41": attributes(job_state="R"),
    "87[]": ARRAY,
    "87[0]": attributes(job_state="X", Exit_status=0),
    "87[12]": attributes(job_state="F", Exit_status=-29),
}


@pytest.mark.parametrize("form", [dsv, plain])
def test_every_job_comes_back_with_every_attribute(form):
    result = parse_qstat(form(JOBS))
    assert {job_id: dict(status.attributes) for job_id, status in result.items()} == JOBS
    assert all(status.id == job_id for job_id, status in result.items())


@pytest.mark.parametrize("form", [dsv, plain])
def test_a_truncated_answer_gives_the_jobs_before_the_cut(form):
    text = form(JOBS)
    starts = [text.index(f"Job Id: {job_id}.") for job_id in JOBS] + [len(text)]
    heading = len("Job Id: ")  # of which a part could end the value before it
    for cut in range(0, len(text), 7):
        result = parse_qstat(text[:cut])
        for job_id, end in zip(JOBS, starts[1:], strict=True):
            if end + heading <= cut or end == cut:
                assert result[job_id].attributes == JOBS[job_id]


@pytest.mark.parametrize("noise", ["", "\n", "qstat: Unknown Job Id 3.pbs01\n", "a = b\n\x1f\n"])
def test_lines_without_a_job_are_left_out(noise):
    assert parse_qstat(noise) == {}
    assert parse_qstat(noise + dsv(JOBS)).keys() == JOBS.keys()


def test_the_state_of_a_running_job():
    status = parse_qstat(dsv(JOBS))["41"]
    assert status.is_running
    assert not status.is_finished
    assert status.hosts == ("node01", "node02")
    assert status.walltime_s == 3600
    assert status.started_at == datetime(2026, 11, 22, 10).timestamp()
    assert (status.name, status.queue, status.run_count) == ("pack", "preemptable", 1)
    assert status.exit_status is None


def test_what_is_not_said_is_none():
    status = JobStatus("1", {"Exit_status": "?", "stime": "soon", "Resource_List.walltime": "x"})
    assert (status.exit_status, status.started_at, status.walltime_s) == (None, None, None)
    assert (status.state, status.comment, status.hosts, status.run_count) == ("", "", (), 0)
