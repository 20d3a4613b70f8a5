"""PBS's commands as functions, and what they make of refusals, unknown jobs and silence."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_pbs.cluster import FakePBS, wait_for
from submitit_pbs import client
from submitit_pbs.reasons import Ending, reason, waiting

Submit = Callable[..., str]


@pytest.fixture
def submit(cluster: FakePBS | None, folder: Path, site: dict[str, Any]) -> Submit:
    """Submits a script with the options that every job needs, or with others."""
    folder.mkdir(exist_ok=True)

    def submit(text: str, *options: str, **changes: str | None) -> str:
        script = folder / "script.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        given = {**site, "walltime": "00:01:00", **changes}
        words = [*options, "-o", f"{folder}/", "-j", "oe"]
        words += ["-q", given["queue"]] if given["queue"] else []
        words += ["-A", given["account"]] if given["account"] else []
        for name in ("select", "walltime", "filesystems"):
            words += ["-l", f"{name}={given[name]}"] if given.get(name) else []
        return client.submit(script, words)

    return submit


def ended(job_id: str) -> Callable[[], Any]:
    def look() -> Any:
        result = client.status([job_id]).get(job_id)
        return reason(result) if result else None

    return look


def test_a_job_ends_as_its_script_does(submit: Submit) -> None:
    jobs = {code: submit(f"exit {code}") for code in (0, 3)}
    for code, job_id in jobs.items():
        result = wait_for(ended(job_id))
        assert result.ending is (Ending.FAILED if code else Ending.SUCCEEDED)


def test_a_script_that_kills_itself_failed(submit: Submit) -> None:
    assert str(wait_for(ended(submit("kill -KILL $$")))) == "failed with exit code 137"


def test_unknown_jobs_are_missing_and_the_others_are_there(submit: Submit) -> None:
    job_id = submit("sleep 100")
    try:
        assert client.status([job_id, "99999"]).keys() == {job_id}
        assert client.status(["99999"]) == {}
        assert client.status([]) == {}
    finally:
        client.cancel([job_id, "99999"])
    assert wait_for(ended(job_id)).ending is Ending.CANCELLED
    client.cancel([job_id])
    client.signal(job_id, "USR2")


def test_an_array_comes_with_its_subjobs(submit: Submit) -> None:
    array = submit("exit $PBS_ARRAY_INDEX", "-J", "0-2")
    assert array.endswith("[]")
    number = array.removesuffix("[]")
    wait_for(ended(array))
    result = client.status([f"{number}[1]"])
    assert result.keys() == {array, *(f"{number}[{i}]" for i in range(3))}
    assert {result[f"{number}[{i}]"].exit_status for i in range(3)} == {0, 1, 2}


def test_a_job_is_found_by_its_name(submit: Submit) -> None:
    name = f"pack-{time.time_ns()}"
    assert client.find_by_name(name) == {}
    jobs = [submit("exit", "-N", name), submit("exit", "-N", name)]
    other = submit("exit", "-N", f"{name}x")
    wait_for(ended(jobs[0]))
    assert client.find_by_name(name) == {name: jobs}
    several = client.find_by_name(name, f"{name}x", f"{name}y")
    assert several == {name: jobs, f"{name}x": [other]}


def test_many_names_cost_as_many_commands_as_two(submit: Submit, fake: FakePBS) -> None:
    submit("exit", "-N", "pack-7")
    assert client.find_by_name(*(f"pack-{i}" for i in range(50))) == {"pack-7": ["1"]}
    assert (fake.calls("qselect"), fake.calls("qstat")) == (1, 1)


def test_a_signal_ends_the_login_shell_and_with_it_the_job(submit: Submit, folder: Path) -> None:
    job_id = submit(f"trap 'exit 7' USR2; touch {folder}/ready; while :; do sleep 0.1; done")
    wait_for((folder / "ready").exists)
    client.signal(job_id, "USR2")
    assert str(wait_for(ended(job_id))) == "killed by SIGUSR2 (Exit_status 268)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"account": None}, "Account_Name is required to be set."),
        ({"filesystems": None}, "filesystems is required to be set."),
        ({"walltime": None}, "walltime is required to be set."),
        ({"queue": "no-such-queue"}, "Unknown queue"),
        ({"walltime": "02:00:00"}, "Job violates queue and/or server resource limits"),
        ({"queue": "prod"}, "Job violates queue and/or server resource limits"),
        ({"queue": "small"}, "Access to queue is denied"),
        (
            {"queue": "prod", "select": "10", "walltime": "10:00:00"},
            "Job rejected by all possible destinations",
        ),
    ],
)
def test_a_refusal_is_qsubs_own_sentence(
    submit: Submit, fake: FakePBS, changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(client.SubmissionRefused, match=words) as refused:
        submit("exit", **changes)
    assert not isinstance(refused.value, client.QueueFull)


def test_a_full_queue_is_another_refusal(submit: Submit, fake: FakePBS) -> None:
    for _ in range(2):
        submit("sleep 100", queue="debug", walltime="00:05:00")
        wait_for(lambda: fake.job("1")["job_state"] == "R")
    with pytest.raises(client.QueueFull, match="per-user limit of jobs in 'Q' state"):
        submit("exit", queue="debug", walltime="00:05:00")
    wait_for(lambda: bool(waiting(client.status(["2"])["2"])))  # its comment is of the next cycle


def test_no_server_is_no_answer_about_any_job(submit: Submit, fake: FakePBS) -> None:
    job_id = submit("sleep 100")
    fake.stop()
    for ask in (
        lambda: client.status([job_id]),
        lambda: client.cancel([job_id]),
        lambda: client.signal(job_id, "USR2"),
        lambda: client.find_by_name("pack"),
        lambda: submit("exit"),
    ):
        with pytest.raises(client.ServerUnreachable, match="cannot connect to server"):
            ask()


def test_a_command_that_hangs_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qstat").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(client, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(client.ServerUnreachable, match="did not end"):
        client.status(["1"])


def test_where_there_is_no_pbs_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(client.PBSError, match="no command qstat in PATH"):
        client.status(["1"])


@pytest.mark.parametrize("printed", ["87.pbs01\n", "note from the site\n87.pbs01\n", "87\n"])
def test_the_id_is_read_from_what_qsub_prints(printed: str) -> None:
    assert client.job_id_in(printed) == "87"


@pytest.mark.parametrize("printed", ["", "queued\n", "1.pbs01\n2.pbs01\n"])
def test_anything_else_is_no_id(printed: str) -> None:
    with pytest.raises(client.PBSError, match="printed no job id"):
        client.job_id_in(printed)
