"""Submitting a job again after its checkpoint: asked for in the job, done by whoever waits for it.

PBS lets no user requeue a job (`qrerun: Unauthorized Request`), and many clusters take no job from
a node. So the job leaves the file `ID_resubmit` beside its pickled state, and the next look at the
job (`PBSJob.done`, `wait`, `result`) submits its script once more. The new PBS job runs under the
id of the first: same pickle, same logs, same result. `ID_pbs_jobs` lists the PBS jobs, in order.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from submitit.core import utils

from submitit_pbs import client
from submitit_pbs.script import ATTEMPT_VARIABLE, JOB_ID_VARIABLE


def ask_for(paths: utils.JobPaths) -> None:
    """Ask, in the job, for a resubmission that goes on from the checkpoint in its pickle."""
    _asked(paths).touch()


def is_asked_for(paths: utils.JobPaths) -> bool:
    """True if a job waits to be submitted again."""
    return _asked(paths).exists()


def pbs_jobs(paths: utils.JobPaths) -> list[str]:
    """The PBS ids of a job's resubmissions, in order; empty if there was none."""
    try:
        return _list(paths).read_text().split()
    except FileNotFoundError:
        return []


def present_pbs_job(paths: utils.JobPaths) -> str | None:
    """The PBS id of the job's last resubmission; None if there was none."""
    jobs = pbs_jobs(paths)
    if not jobs:
        return None
    try:  # the script notes here which of two PBS jobs runs the attempt
        claim = _beside(paths, f"attempt_{len(jobs)}").read_text()
    except FileNotFoundError:
        return jobs[-1]
    return claim.partition(".")[0].strip() or jobs[-1]


def resubmit(paths: utils.JobPaths) -> None:
    """Submit a job's script again, if that is still asked for.

    Of several processes that wait for the job one does it. If this process dies in between, the
    script may be submitted twice; then one of the two PBS jobs ends at once, without doing
    anything.

    Raises
    ------
    PBSError
        PBS does not take it now; it is still asked for
    """
    with _lock(paths):
        if not is_asked_for(paths):
            return
        done = pbs_jobs(paths)
        attempt = len(done) + 1
        variables = f"{JOB_ID_VARIABLE}={paths.job_id},{ATTEMPT_VARIABLE}={attempt}"
        script = paths.submission_file
        if "_" in str(paths.job_id):
            script = _without_array(paths)
        pbs_id = client.submit(script, ["-v", variables])
        new = _list(paths).with_suffix(".new")
        new.write_text("".join(f"{job_id}\n" for job_id in [*done, pbs_id]))
        os.replace(new, _list(paths))
        _asked(paths).unlink()


def _without_array(paths: utils.JobPaths) -> Path:
    """Script of one sub-job, which comes back as a job outside the array."""
    text = paths.submission_file.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#PBS -J ")]
    path = _beside(paths, "submission.sh")
    path.write_text("\n".join(lines) + "\n")
    return path


@contextlib.contextmanager
def _lock(paths: utils.JobPaths) -> Iterator[None]:
    with _beside(paths, "resubmit.lock").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: see `resubmit`
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _asked(paths: utils.JobPaths) -> Path:
    return _beside(paths, "resubmit")


def _list(paths: utils.JobPaths) -> Path:
    return _beside(paths, "pbs_jobs")


def _beside(paths: utils.JobPaths, name: str) -> Path:
    return Path(paths.folder) / f"{paths.job_id}_{name}"
