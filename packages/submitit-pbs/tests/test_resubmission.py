"""A job that asks for it is submitted again once, whoever and however many look at it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from submitit.core.utils import JobPaths

from submitit_pbs import client, resubmission


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    """A job in its folder, with the script that it was submitted with."""
    paths = JobPaths(tmp_path, job_id="87")
    paths.submission_file.write_text("#!/bin/bash\n")
    return paths


@pytest.fixture
def qsub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[str]]]:
    """Record the submission instead of running qsub."""
    calls: list[tuple[Path, list[str]]] = []

    def submit(script: Path, options: list[str]) -> str:
        calls.append((script, options))
        return str(100 + len(calls))

    monkeypatch.setattr(client, "submit", submit)
    return calls


def test_a_job_that_does_not_ask_is_not_submitted_again(paths: JobPaths, qsub: list) -> None:
    resubmission.resubmit(paths)
    assert not qsub
    assert resubmission.present_pbs_job(paths) is None


def test_only_one_of_many_processes_submits_again(paths: JobPaths, qsub: list) -> None:
    for attempt in (1, 2):
        resubmission.ask_for(paths)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: resubmission.resubmit(paths), range(8)))
        assert len(qsub) == attempt
        assert f"SUBMITIT_PBS_JOB_ID=87,SUBMITIT_PBS_ATTEMPT={attempt}" in qsub[-1][1]
    assert resubmission.pbs_jobs(paths) == ["101", "102"]
    assert resubmission.present_pbs_job(paths) == "102"


def test_a_refusal_leaves_it_asked_for(
    paths: JobPaths, qsub: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(script: Path, options: list[str]) -> str:
        raise client.QueueFull("would exceed queue generic's per-user limit", 38)

    resubmission.ask_for(paths)
    with monkeypatch.context() as patch:
        patch.setattr(client, "submit", refuse)
        with pytest.raises(client.QueueFull):
            resubmission.resubmit(paths)
    resubmission.resubmit(paths)
    assert len(qsub) == 1
    assert not resubmission.is_asked_for(paths)


def test_a_subjob_comes_back_without_its_array(tmp_path: Path, qsub: list) -> None:
    paths = JobPaths(tmp_path, job_id="87_2")
    lines = ["#!/bin/bash", "#PBS -N pack", "#PBS -J 0-7%2", "echo"]
    paths.submission_file.write_text("\n".join(lines) + "\n")
    resubmission.ask_for(paths)
    resubmission.resubmit(paths)
    ((script, _),) = qsub
    assert script.read_text().splitlines() == [lines[0], lines[1], lines[3]]
    assert len(paths.submission_file.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("claim", "present"), [("101.pbs01\n", "101"), ("103.pbs01\n", "103"), ("", "101")]
)
def test_the_present_job_is_the_one_that_runs_the_attempt(
    paths: JobPaths, qsub: list, claim: str, present: str
) -> None:
    resubmission.ask_for(paths)
    resubmission.resubmit(paths)
    assert resubmission.present_pbs_job(paths) == "101"
    (paths.folder / "87_attempt_1").write_text(claim)
    assert resubmission.present_pbs_job(paths) == present
