"""The PBS of the tests does what a real one was seen to do."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fake_pbs import server
from fake_pbs.cluster import FakePBS, wait_for
from submitit_pbs import client

NEEDED = "-A physics -l filesystems=home -j oe"


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePBS]:
    with FakePBS(tmp_path / "pbs", nodes=12, time_scale=1 / 100) as pbs:
        monkeypatch.setenv("PATH", pbs.path)
        yield pbs


@pytest.fixture
def shell(tmp_path: Path):
    def run(line: str, stdin: str = "") -> tuple[str, int]:
        """Output of a command line on either stream, and its exit code."""
        done = subprocess.run(
            ["bash", "-c", f"{line} 2>&1"],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip(), done.returncode

    return run


@pytest.fixture
def qsub(shell):
    def submit(script: str, options: str) -> str:
        printed, code = shell(f"qsub {NEEDED} {options}", script)
        assert code == 0, printed
        return printed.removesuffix(".fake-pbs")

    return submit


def state_of(pbs: FakePBS, job_id: str):
    return pbs.job(job_id)["job_state"]


def test_what_commands_say(pbs, shell, qsub) -> None:
    for _ in range(2):
        job_id = qsub("sleep 60", "-q debug -l select=1,walltime=01:00:00")
        wait_for(lambda: state_of(pbs, "1") == "R")
    limit = "would exceed queue generic's per-user limit"
    small = "-q debug-scaling -l select=1,walltime=00:05:00 -- /bin/sleep 60"
    assert shell(f"qsub {NEEDED} {small}") == ("3.fake-pbs", 0)
    assert shell(f"qsub {NEEDED} {small}") == (f"qsub: {limit}", 38)
    debug = f"qsub {NEEDED} -q debug -l select=1,walltime=01:00:00 -- /bin/true"
    assert shell(debug) == (f"qsub: {limit} of jobs in 'Q' state", 38)
    assert shell("qrerun 1") == ("qrerun: Unauthorized Request  1.fake-pbs", 159)
    assert shell("qsig -s CONT 1") == ("", 0)
    assert shell("qstat 99999") == ("qstat: Unknown Job Id 99999.fake-pbs", 153)
    assert shell(f"qdel {job_id}") == ("", 0)
    assert shell(f"qdel {job_id}") == (f"qdel: Job has finished {job_id}.fake-pbs", 35)
    pbs.stop()
    words = "Connection refused\nqstat: cannot connect to server fake-pbs (errno=15010)"
    assert shell("qstat") == (words, 255)


def test_prod_passes_a_job_on_to_the_queue_that_fits(pbs, qsub) -> None:
    job_id = qsub("true", "-l select=10 -l walltime=00:10:00")
    wait_for(lambda: state_of(pbs, job_id) == "F")
    assert pbs.job(job_id)["queue"] == "small"


def test_the_walltime_ends_a_job(pbs, qsub, tmp_path: Path) -> None:
    job_id = qsub("sleep 600", f"-q debug -l select=1,walltime=00:05:00 -o {tmp_path}/out")
    wait_for(lambda: state_of(pbs, job_id) == "F")
    assert pbs.job(job_id)["Exit_status"] == "-29"
    assert pbs.job(job_id)["comment"].endswith("and exceeded resource walltime")
    assert "=>> PBS: job killed: walltime" in (tmp_path / "out").read_text()


def test_a_job_that_ignores_term_is_killed_later(pbs, qsub, tmp_path: Path) -> None:
    pbs.configure("kill_delay_s", 0.3)
    script = f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.1; done"
    job_id = qsub(script, "-q demand -l select=1,walltime=01:00:00")
    wait_for((tmp_path / "ready").exists)
    client.cancel([job_id])
    wait_for(lambda: state_of(pbs, job_id) == "F")
    assert pbs.job(job_id)["Exit_status"] == "271"  # of the login shell, which does not ignore it


def test_demand_takes_nodes_from_preemptable_jobs(pbs, qsub) -> None:
    common = "-q preemptable -l select=6,walltime=72:00:00"
    again = qsub("sleep 600", f"{common} -r y")
    wait_for(lambda: state_of(pbs, again) == "R")
    ended = qsub("sleep 600", f"{common} -r n")
    wait_for(lambda: state_of(pbs, ended) == "R")
    urgent = qsub("sleep 1", "-q demand -l select=12,walltime=01:00:00")
    wait_for(lambda: state_of(pbs, urgent) == "R")
    assert state_of(pbs, again) == "Q"
    assert pbs.job(again)["Exit_status"] == "-11"
    assert state_of(pbs, ended) == "F"
    assert "and terminated by Scheduler@" in pbs.job(ended)["comment"]
    wait_for(lambda: state_of(pbs, again) == "R")
    assert pbs.job(again)["run_count"] == "2"


def test_a_lost_first_node_is_noticed_late_and_the_job_runs_elsewhere(pbs, qsub) -> None:
    job_id = qsub("sleep 600", "-q demand -l select=2,walltime=01:00:00")
    wait_for(lambda: state_of(pbs, job_id) == "R")
    lost, *_ = pbs.hosts(job_id)
    pbs.lose_node(lost)
    assert state_of(pbs, job_id) == "R"
    wait_for(lambda: pbs.job(job_id)["run_count"] == "2")
    assert lost not in pbs.hosts(job_id)


def test_a_lost_further_node_leaves_the_job_hanging_until_it_is_back(
    pbs, qsub, tmp_path: Path
) -> None:
    pbs.configure("node_fail_requeue_s", 0.2)
    script = f"pbs_tmrsh $(tail -1 $PBS_NODEFILE) /bin/bash -c 'touch {tmp_path}/up; sleep 600'"
    options = f"-q demand -l select=2,walltime=01:00:00 -o {tmp_path}/out"
    job_id = qsub(f"{script}; touch {tmp_path}/went-on", options)
    wait_for((tmp_path / "up").exists)
    _, lost = pbs.hosts(job_id)
    pbs.lose_node(lost)
    time.sleep(0.5)
    assert state_of(pbs, job_id) == "R"
    assert not (tmp_path / "went-on").exists()
    pbs.restore_node(lost)
    wait_for(lambda: state_of(pbs, job_id) == "F")
    assert pbs.job(job_id)["Exit_status"] == "271"
    assert f"node 1 ({lost}) requested job die, code 15009" in (tmp_path / "out").read_text()


def test_only_the_first_node_is_warned(pbs, qsub, tmp_path: Path) -> None:
    (tmp_path / "member").write_text(
        f'trap "echo $FAKE_PBS_NODE >>{tmp_path}/warned" TERM\n'
        f"touch {tmp_path}/up-$FAKE_PBS_NODE\nwhile :; do sleep 0.1; done\n"
    )
    member = f"/bin/bash {tmp_path}/member &"
    script = f"trap 'sleep 0.5; exit' TERM; {member} pbs_tmrsh $(tail -1 $PBS_NODEFILE) {member}"
    job_id = qsub(f"{script} wait", "-q demand -l select=2,walltime=01:00:00")
    wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 2)
    client.cancel([job_id])
    wait_for(lambda: state_of(pbs, job_id) == "F")
    first, _ = pbs.hosts(job_id)
    assert (tmp_path / "warned").read_text() == f"{first}\n"
    assert pbs.processes() == 0


def test_a_process_in_a_session_of_its_own_outlives_the_job(pbs, qsub, tmp_path: Path) -> None:
    script = f"setsid sleep 600 & echo $! >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid"
    job_id = qsub(f"sleep 500 & {script}; sleep 600", "-q demand -l select=1,walltime=01:00:00")
    wait_for((tmp_path / "pid").exists)
    outlives = int((tmp_path / "pid").read_text())
    time.sleep(0.2)
    client.cancel([job_id])
    wait_for(lambda: state_of(pbs, job_id) == "F")
    try:
        assert pbs.processes() == 0
        os.kill(outlives, 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(outlives, signal.SIGKILL)


def test_mpiexec_places_ranks_and_ends_them_all_if_one_fails(pbs, qsub, tmp_path: Path) -> None:
    place = f"echo $PMI_RANK $PMI_LOCAL_RANK $FAKE_PBS_NODE >>{tmp_path}/ranks"
    fail = "[ $PMI_RANK = 3 ] && exit 5; sleep 600"
    script = f"mpiexec -n 4 --ppn 2 bash -c '{place}'; mpiexec -n 4 --ppn 2 bash -c '{fail}'"
    job_id = qsub(script, "-q demand -l select=2,walltime=01:00:00")
    wait_for(lambda: state_of(pbs, job_id) == "F")
    assert int(pbs.job(job_id)["Exit_status"]) in (5, 128 + 9)
    first, second = pbs.hosts(job_id)
    ranks = sorted((tmp_path / "ranks").read_text().splitlines())
    assert ranks == [f"0 0 {first}", f"1 1 {first}", f"2 0 {second}", f"3 1 {second}"]


def test_a_killed_server_has_lost_nothing_that_it_answered(pbs, qsub) -> None:
    jobs = [qsub("sleep 600", "-q demand -l select=1,walltime=01:00:00") for _ in range(3)]
    pbs.stop(signal.SIGKILL)
    pbs.start()
    assert client.status(jobs).keys() == set(jobs)
    assert qsub("true", "-q demand -l select=1,walltime=01:00:00") == "4"


@pytest.mark.parametrize("before", ["_write_run", "run_script"])
def test_a_job_that_a_killed_server_was_starting_is_started_again(
    pbs, qsub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    pbs.configure("tick_s", 3600)
    job_id = qsub(f"echo ran >>{tmp_path}/log", "-q demand -l select=1,walltime=01:00:00")
    pbs.stop(signal.SIGKILL)
    again = server.Server(str(pbs.directory))
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(server.Server, before, killed)
        with pytest.raises(KeyboardInterrupt):
            again.start(again.jobs[job_id], again.free_nodes()[:1])
    pbs.start()
    wait_for(lambda: state_of(pbs, job_id) == "F")
    assert (tmp_path / "log").read_text() == "ran\n"


def test_an_array_runs_as_many_at_once_as_it_says(pbs, qsub, tmp_path: Path) -> None:
    script = f"echo + >>{tmp_path}/log; sleep 0.4; echo - >>{tmp_path}/log"
    array = qsub(script, "-q preemptable -J 0-4%2 -l select=1,walltime=01:00:00")
    wait_for(lambda: state_of(pbs, array) == "F")
    running = most = 0
    for line in (tmp_path / "log").read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    assert most <= 2
    assert (tmp_path / "log").read_text().count("+") == 5
