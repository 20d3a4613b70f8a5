"""Functions as PBS jobs, from submission to result, whatever happens to the job in between."""

import os
import pickle
import stat
import subprocess
import time
from pathlib import Path

import pytest
import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError, UncompletedJobError

from fake_pbs.cluster import FakePBS, wait_for
from submitit_pbs import PBSExecutor, PBSJob, client, watcher
from submitit_pbs.reasons import Ending

pytestmark = pytest.mark.slow


def multiply(a: int, b: int) -> int:
    print(f"multiplying on {submitit.JobEnvironment().hostname}")
    if b == 0:
        raise ArithmeticError("not by zero")
    return a * b


def count_to(last: int, log: str, at: int = 0) -> int:
    for number in range(at, last):
        with open(log, "a") as file:
            file.write(f"{number}\n")
        time.sleep(0.1)
    return last


class Counter:
    """Counts to a number, and goes on where it was after a checkpoint."""

    def __init__(self, last: int, log: str):
        self.last, self.log, self.number = last, log, 0

    def __call__(self) -> int:
        while self.number < self.last:
            with open(self.log, "a") as file:
                file.write(f"{self.number}\n")
            self.number += 1
            time.sleep(0.1)
        return self.number

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)


def has_begun(log: Path):
    return lambda: log.exists() and log.read_text()


def numbers(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


class TestResults:
    def test_a_job_delivers_the_return_value_of_its_function(self, executor: PBSExecutor) -> None:
        job = executor.submit(multiply, 6, b=7)
        assert job.result() == 42
        assert "multiplying on" in (job.stdout() or "")
        wait_for(lambda: job.get_info()["State"] == "COMPLETED", every_s=0.5)
        assert str(job.reason) == "succeeded"
        assert isinstance(pickle.loads(pickle.dumps(job)), PBSJob)

    def test_an_array_delivers_each_result_and_each_exception(self, executor: PBSExecutor) -> None:
        executor.update_parameters(array_parallelism=2)
        jobs = executor.map_array(multiply, [1, 2, 3], [5, 0, 7])
        assert len({job.job_id.partition("_")[0] for job in jobs}) == 1
        assert [jobs[0].result(), jobs[2].result()] == [5, 21]
        with pytest.raises(FailedJobError, match="ArithmeticError: not by zero"):
            jobs[1].result()

    def test_autoexecutor_finds_it_and_passes_shared_parameters(
        self, executor: PBSExecutor, site: dict[str, str]
    ) -> None:
        auto = submitit.AutoExecutor(executor.folder, cluster="pbs")
        own = {f"pbs_{name}": value for name, value in site.items()}
        auto.update_parameters(name="auto", timeout_min=3, nodes=1, cpus_per_task=1, **own)
        job = auto.submit(multiply, 2, 3)
        info = job.get_info()
        assert info["Job_Name"] == "auto"
        assert info["Resource_List.walltime"] == "00:03:00"
        assert info["Resource_List.select"] == "1:ncpus=1"
        assert job.result() == 6

    def test_files_of_a_job_are_readable_by_others(
        self, executor: PBSExecutor, folder: Path
    ) -> None:
        executor.submit(Path.touch, folder / "made").result()
        assert stat.S_IMODE((folder / "made").stat().st_mode) & 0o044

    def test_a_folder_may_be_named_after_the_job(
        self, executor: PBSExecutor, site: dict[str, str]
    ) -> None:
        own = PBSExecutor(executor.folder / "a b" / "%j")
        own.update_parameters(**site)
        jobs = own.map_array(multiply, [1, 2], [3, 4])
        assert [job.result() for job in jobs] == [3, 8]
        assert {job.paths.folder.name for job in jobs} == {job.job_id for job in jobs}


class TestEnds:
    def test_a_cancelled_job_says_who_deleted_it(self, executor: PBSExecutor, folder: Path) -> None:
        log = folder / "log"
        job = executor.submit(count_to, 10_000, str(log))
        wait_for(has_begun(log))
        job.cancel()
        with pytest.raises(UncompletedJobError, match="deleted by"):
            job.result()
        assert job.reason.ending is Ending.CANCELLED
        assert job.state == "CANCELLED"
        job.cancel()  # those of an ended job are empty

    def test_the_walltime_is_named(self, executor: PBSExecutor, folder: Path) -> None:
        executor.update_parameters(walltime="00:00:08", signal_delay_s=0)
        job = executor.submit(count_to, 10_000, str(folder / "log"))
        with pytest.raises(UncompletedJobError, match=r"walltime exceeded \(Exit_status -29\)"):
            job.result()
        assert job.state == "TIMEOUT"

    def test_a_preempted_job_runs_again(
        self, executor: PBSExecutor, folder: Path, fake: FakePBS
    ) -> None:
        log = folder / "log"
        job = executor.submit(count_to, 20, str(log))
        wait_for(has_begun(log))
        fake.preempt(job.pbs_job_id)
        assert job.result() == 20
        assert fake.job(job.pbs_job_id)["run_count"] == "2"
        assert numbers(log).count(0) == 2

    def test_a_preempted_job_with_a_checkpoint_goes_on(
        self, executor: PBSExecutor, folder: Path, fake: FakePBS
    ) -> None:
        log = folder / "log"
        job = executor.submit(Counter(20, str(log)))
        wait_for(has_begun(log))
        fake.preempt(job.pbs_job_id)
        assert job.result() == 20
        assert numbers(log).count(0) == 1

    def test_a_preempted_job_that_may_not_run_again_says_so(
        self, executor: PBSExecutor, folder: Path, fake: FakePBS
    ) -> None:
        executor.update_parameters(rerunnable=False)
        log = folder / "log"
        job = executor.submit(count_to, 10_000, str(log))
        wait_for(has_begun(log))
        fake.preempt(job.pbs_job_id)
        with pytest.raises(UncompletedJobError, match="preempted by the scheduler"):
            job.result()
        assert fake.processes() == 0

    def test_a_job_survives_the_loss_of_its_node(
        self, executor: PBSExecutor, folder: Path, fake: FakePBS
    ) -> None:
        log = folder / "log"
        job = executor.submit(count_to, 20, str(log))
        wait_for(has_begun(log))
        (lost,) = fake.hosts(job.pbs_job_id)
        fake.lose_node(lost)
        assert job.result() == 20
        assert fake.hosts(job.pbs_job_id) != [lost]

    def test_a_job_that_pbs_cannot_start_is_held_and_done(
        self, executor: PBSExecutor, folder: Path, fake: FakePBS
    ) -> None:
        for node in fake.nodes:
            fake.lose_node(node)
        job = executor.submit(multiply, 1, 1)
        log = Path(fake.job(job.job_id)["Output_Path"].partition(":")[2])
        aside = log.rename(log.with_name("aside"))
        for node in fake.nodes:
            fake.restore_node(node)
        wait_for(lambda: fake.job(job.job_id)["job_state"] == "H")
        aside.rename(log)
        with pytest.raises(UncompletedJobError, match="held after 21 failed starts"):
            job.result()

    def test_a_job_that_pbs_loses_is_done_after_a_while(
        self, executor: PBSExecutor, fake: FakePBS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for node in fake.nodes:
            fake.lose_node(node)
        job = executor.submit(multiply, 1, 1)
        fake.forget(job.job_id)
        assert not job.done(force_check=True)
        monkeypatch.setattr(watcher, "UNKNOWN_GRACE_S", 0.5)
        with pytest.raises(UncompletedJobError, match="accepted by qsub, then unknown to PBS"):
            job.result()


class TestCheckpoints:
    def test_usr2_comes_before_the_walltime_and_the_job_goes_on(
        self, executor: PBSExecutor, folder: Path
    ) -> None:
        executor.update_parameters(walltime="00:00:12", signal_delay_s=5)
        log = folder / "log"
        job = executor.submit(Counter(90, str(log)))
        assert job.result() == 90
        assert numbers(log) == list(range(90))
        assert job.pbs_job_id != job.job_id
        again = PBSJob(executor.folder, job.job_id)
        assert again.result() == 90

    def test_a_subjob_of_an_array_goes_on_as_a_job(
        self, executor: PBSExecutor, folder: Path, cluster: FakePBS | None
    ) -> None:
        logs = [folder / f"log{i}" for i in range(2)]
        jobs = executor.submit_array([Counter(30, str(log)) for log in logs])
        wait_for(has_begun(logs[1]))
        jobs[1]._interrupt()
        assert [job.result() for job in jobs] == [30, 30]
        assert numbers(logs[1]) == list(range(30))

    def test_without_a_checkpoint_the_walltime_is_an_error(
        self, executor: PBSExecutor, folder: Path
    ) -> None:
        log = folder / "log"
        job = executor.submit(count_to, 10_000, str(log))
        wait_for(has_begun(log))
        job._interrupt()
        with pytest.raises(FailedJobError, match="timed-out and not checkpointable"):
            job.result()

    def test_it_goes_on_as_often_as_max_num_timeout_says(
        self, executor: PBSExecutor, folder: Path
    ) -> None:
        executor.max_num_timeout = 1
        log = folder / "log"
        job = executor.submit(Counter(10_000, str(log)))
        wait_for(has_begun(log))
        job._interrupt()
        wait_for(lambda: not job.done() and job.pbs_job_id != job.job_id)
        last = numbers(log)[-1]
        wait_for(lambda: numbers(log)[-1] > last)
        job._interrupt()
        with pytest.raises(FailedJobError, match="timed-out too many times"):
            job.result()

    def test_an_attempt_that_is_submitted_twice_runs_once(
        self, executor: PBSExecutor, folder: Path, cluster: FakePBS | None
    ) -> None:
        log = folder / "log"
        job = executor.submit(Counter(40, str(log)))
        wait_for(has_begun(log))
        job._interrupt()
        wait_for(lambda: (executor.folder / f"{job.job_id}_resubmit").exists())
        # State left by a controller that dies between qsub and its note.
        variables = f"SUBMITIT_PBS_JOB_ID={job.job_id},SUBMITIT_PBS_ATTEMPT=1"
        client.submit(job.paths.submission_file, ["-v", variables])
        assert job.result() == 40
        assert numbers(log) == list(range(40))


class TestOutages:
    def test_a_job_ends_while_the_server_is_down(
        self, executor: PBSExecutor, fake: FakePBS, folder: Path
    ) -> None:
        log = folder / "log"
        job = executor.submit(count_to, 10, str(log))
        wait_for(has_begun(log))
        fake.stop()
        assert not job.done(force_check=True)
        assert job.state in ("PENDING", "RUNNING", "UNKNOWN")
        assert job.result() == 10
        fake.start()
        wait_for(lambda: fake.job(job.job_id)["job_state"] == "F")

    def test_a_killed_server_knows_its_jobs_again(
        self, executor: PBSExecutor, fake: FakePBS, folder: Path
    ) -> None:
        log = folder / "log"
        job = executor.submit(count_to, 10_000, str(log))
        wait_for(has_begun(log))
        fake.stop(9)
        fake.start()
        job.cancel()
        with pytest.raises(UncompletedJobError, match="deleted by"):
            job.result()
        assert fake.processes() == 0

    def test_a_checkpoint_waits_for_the_server(
        self, executor: PBSExecutor, fake: FakePBS, folder: Path
    ) -> None:
        log = folder / "log"
        job = executor.submit(Counter(20, str(log)))
        wait_for(has_begun(log))
        job._interrupt()
        wait_for(lambda: (executor.folder / f"{job.job_id}_resubmit").exists())
        fake.stop()
        assert not job.done()
        assert job.state == "REQUEUED"
        fake.start()
        assert job.result() == 20

    def test_nothing_is_left_of_a_submission_that_fails(
        self, executor: PBSExecutor, fake: FakePBS
    ) -> None:
        fake.stop()
        with pytest.raises(client.ServerUnreachable):
            executor.submit(multiply, 1, 1)
        assert not list(executor.folder.iterdir())

    def test_one_call_asks_for_all_jobs(self, executor: PBSExecutor, fake: FakePBS) -> None:
        for node in fake.nodes:
            fake.lose_node(node)
        jobs = [executor.submit(multiply, 1, i) for i in range(3)]
        jobs += executor.map_array(multiply, [1] * 5, range(5))
        assert {job.state for job in jobs} == {"PENDING"}
        assert fake.calls("qstat") == 1


def test_a_job_sees_its_own_environment(executor: PBSExecutor) -> None:
    def look() -> tuple[str, int, list[str], str]:
        environment = submitit.JobEnvironment()
        return repr(environment), environment.num_tasks, environment.hostnames, os.getcwd()

    job = executor.submit(look)
    shown, tasks, hosts, directory = job.result()
    assert job.job_id in shown
    assert (tasks, len(hosts)) == (1, 1)
    assert directory == os.getcwd()


def test_no_process_of_a_job_outlives_it(
    executor: PBSExecutor, fake: FakePBS, folder: Path
) -> None:
    executor.update_parameters(nodes=2, setup=[f"touch {folder}/set-up"])

    def spread() -> int:
        hosts = submitit.JobEnvironment().hostnames
        subprocess.Popen(["pbs_tmrsh", hosts[1], "/bin/sleep", "600"])
        return len(hosts)

    assert executor.submit(spread).result() == 2
    assert (folder / "set-up").exists()
    wait_for(lambda: fake.processes() == 0)
