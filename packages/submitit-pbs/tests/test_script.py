"""Parameters become a job script that asks PBS for just that."""

import subprocess
from pathlib import Path

import pytest
from submitit.core.utils import JobPaths

from submitit_pbs.job import pbs_id, submitit_id
from submitit_pbs.script import PARAMETER_NAMES, Parameters, directives, script


def lines(**parameters: object) -> list[str]:
    return directives(Parameters(**parameters), Path("/shared/jobs"))  # type: ignore[arg-type]


def test_a_polaris_job() -> None:
    asked = lines(
        **{"job_name": "pack-1", "queue": "preemptable", "account": "physics", "walltime": 90},
        **{"nodes": 10, "chunk": "system=polaris", "filesystems": "home:eagle"},
    )
    assert asked == [
        "#PBS -N pack-1",
        "#PBS -q preemptable",
        "#PBS -A physics",
        "#PBS -l select=10:system=polaris",
        "#PBS -l place=scatter",
        "#PBS -l walltime=01:30:00",
        "#PBS -l filesystems=home:eagle",
        "#PBS -r y",
        "#PBS -k doe",
        "#PBS -W umask=022",
        "#PBS -j oe",
        "#PBS -o /shared/jobs/",
    ]


def test_options_that_are_not_given_are_left_to_the_server() -> None:
    asked = " ".join(lines(place=None, keep=None, umask=None))
    for option in ("-q", "-A", "place", "filesystems", "-k", "umask", "-V"):
        assert option not in asked


def test_chunks_resources_and_directives() -> None:
    asked = lines(
        **{"nodes": 2, "cpus_per_task": 64, "gpus_per_node": 4, "mem": "256gb"},
        **{"resources": {"singularity_fakeroot": True}, "rerunnable": False},
        directives=["-m n"],
    )
    assert "#PBS -l select=2:ncpus=64:ngpus=4:mem=256gb" in asked
    assert "#PBS -l singularity_fakeroot=True" in asked
    assert "#PBS -r n" in asked
    assert "#PBS -m n" in asked
    assert "#PBS -l select=1:system=a+2:system=b" in lines(select="1:system=a+2:system=b", nodes=9)


@pytest.mark.parametrize(
    ("walltime", "written"),
    [(1, "00:01:00"), (0.5, "00:00:30"), ("72:00:00", "72:00:00"), (1440, "24:00:00")],
)
def test_a_walltime_is_minutes_or_a_clock(walltime: float | str, written: str) -> None:
    assert f"#PBS -l walltime={written}" in lines(walltime=walltime)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"walltime": "90"}, "'HH:MM:SS'"),
        ({"walltime": "01:60:00"}, "'HH:MM:SS'"),
        ({"walltime": 0}, "is no time"),
        ({"nodes": 0}, "number of nodes"),
        ({"tasks_per_node": 4}, "one process a job"),
        ({"job_name": "a pack"}, "qsub -N"),
        ({"job_name": ""}, "qsub -N"),
        ({"setup": "module load conda"}, "list of lines"),
    ],
)
def test_wrong_values_are_one_sentence(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Parameters(**wrong)  # type: ignore[arg-type]


def test_every_parameter_is_explained() -> None:
    text = str(Parameters.__doc__).replace(",", "\n").split("\n")
    assert {line.strip() for line in text} >= set(PARAMETER_NAMES)


@pytest.mark.parametrize("array_size", [None, 7])
@pytest.mark.parametrize("folder", ["/shared/jobs", "/shared/it's/%j", "/a b/%A/$x/%a"])
def test_the_script_is_bash_and_finds_its_folder(
    tmp_path: Path, folder: str, array_size: int | None
) -> None:
    index = "" if array_size is None else "3"
    if "%a" in folder and array_size is None:
        pytest.skip("only an array has %a")
    place = Path(f"{tmp_path}{folder}")
    text = script(
        Parameters(setup=["echo set up"], teardown=["echo torn down"], signal_delay_s=0),
        *("echo $PWD; false", place, tmp_path, tmp_path, array_size),
    )
    path = tmp_path / "script"
    path.write_text(text)
    environment = {
        "PBS_JOBID": f"87[{index}].server" if index else "87.server",
        "PATH": "/usr/bin:/bin",
    }
    environment |= {"PBS_ARRAY_INDEX": index} if index else {}
    done = subprocess.run(["bash", path], env=environment, check=False)
    assert done.returncode == 1
    paths = JobPaths(place, job_id=f"87_{index}" if index else "87")
    assert paths.stdout.read_text() == f"set up\n{tmp_path}\ntorn down\n"
    assert paths.stderr.exists()
    assert ("-J 0-6" in text) == (array_size is not None)


def test_logs_of_a_second_run_follow_those_of_the_first(tmp_path: Path) -> None:
    parameters = Parameters(signal_delay_s=0, stderr_to_stdout=True)
    for _ in range(2):
        assert run(tmp_path, "echo out; echo err >&2", parameters) == 0
    assert (tmp_path / "87_0_log.out").read_text() == "out\nerr\n" * 2


def run(tmp_path: Path, command: str, parameters: Parameters) -> int:
    """The exit code of a script of job 87 in a folder."""
    path = tmp_path / "script"
    path.write_text(script(parameters, command, tmp_path, tmp_path, tmp_path))
    environment = {"PBS_JOBID": "87.server", "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", path], env=environment, check=False).returncode


@pytest.mark.parametrize("removed", [False, True])
def test_files_that_a_killed_run_was_writing_are_mended(tmp_path: Path, removed: bool) -> None:
    pickle, new = tmp_path / "87_submitted.pkl", tmp_path / "87_submitted.pkl.save_tmp"
    pickle.write_text("old")
    new.write_text("new")
    (tmp_path / "87_0_result.pkl.save_tmp").write_text("half a result")
    (tmp_path / "88_0_result.pkl.save_tmp").write_text("another job's")
    if removed:
        pickle.unlink()
    assert run(tmp_path, "true", Parameters()) == 0
    assert pickle.read_text() == ("new" if removed else "old")
    assert [path.name for path in tmp_path.glob("*.save_tmp")] == ["88_0_result.pkl.save_tmp"]


def test_a_job_that_is_stopped_during_its_set_up_does_not_begin(tmp_path: Path) -> None:
    parameters = Parameters(setup=["kill -TERM $$"], teardown=["touch torn-down"])
    assert run(tmp_path, "touch begun", parameters) == 143
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("number", ["87", "87_0", "87_12"])
def test_ids_go_both_ways(number: str) -> None:
    assert submitit_id(pbs_id(number)) == number


@pytest.mark.parametrize("wrong", ["", "87.server", "job", "[2]"])
def test_an_invalid_id_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not the id of a PBS job"):
        submitit_id(wrong)
