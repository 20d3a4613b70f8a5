"""Answers of `qstat -x -t -f` in the forms that PBS gives them."""

from submitit_pbs.status import SEPARATOR

RAN = "Job run at Sun Nov 22 at 10:00 on (node01:ncpus=64)+(node02:ncpus=64)"
ARRAY = {"job_state": "B", "array": "True", "comment": "Job Array Began at Sun Nov 22 at 10:00"}


def attributes(**changes: str | int) -> dict[str, str]:
    """A job's attributes, less those that only take room; `_` stands for a dot's part."""
    job = {
        "Job_Name": "pack",
        "Job_Owner": "ada@login01",
        "job_state": "F",
        "queue": "preemptable",
        "server": "pbs01",
        "Account_Name": "physics",
        "exec_host": "node01/0*64+node02/0*64",
        "Rerunable": "True",
        "Resource_List.nodect": "2",
        "Resource_List.select": "2:system=machine",
        "Resource_List.walltime": "01:00:00",
        "stime": "Sun Nov 22 10:00:00 2026",
        "Variable_List": "PBS_O_HOME=/home/ada,PBS_O_PATH=/usr/bin:/bin,NAME=a = b",
        "comment": f"{RAN} and finished",
        "run_count": "1",
        "Submit_arguments": "-l select=2:system=machine pack.sh",
    }
    return job | {name: str(value) for name, value in changes.items()}


def dsv(jobs: dict[str, dict[str, str]]) -> str:
    """`qstat -f -F dsv -D SEPARATOR`: one line a job."""
    lines = (
        SEPARATOR.join([f"Job Id: {job_id}.pbs01", *(f"{k}={v}" for k, v in job.items())])
        for job_id, job in jobs.items()
    )
    return "\n".join(lines) + "\n"


def plain(jobs: dict[str, dict[str, str]], width: int = 78) -> str:
    """`qstat -f`: a line for each attribute, long lines folded with a tab."""
    text = ""
    for job_id, job in jobs.items():
        text += f"Job Id: {job_id}.pbs01\n"
        for name, value in job.items():
            line = f"    {name} = {value}"
            first, rest = line[:width], line[width:]
            text += first + "\n"
            for start in range(0, len(rest), width):
                text += "\t" + rest[start : start + width] + "\n"
        text += "\n"
    return text
