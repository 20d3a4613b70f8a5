"""Batch systems: submitit writes the job scripts and submits them, one command a cycle looks.

submitit's own `state`, `done()` and `result()` are not used: they look once and remember, swallow
the status command's errors, and take a stopped job for a finished one.
"""

from submitit_packs.errors import BadSettings
from submitit_packs.schedulers.scheduler import Ending, JobStatus, Phase, Scheduler


def of(name: str, account: str | None = None) -> Scheduler:
    """The batch system of a name: pbs, slurm or local."""
    if name == "local":
        from submitit_packs.schedulers.local import Local

        return Local()
    if name == "slurm":
        from submitit_packs.schedulers.slurm import Slurm

        return Slurm(account)
    if name == "pbs":
        from submitit_packs.schedulers.pbs import PBS

        return PBS(account)
    raise BadSettings(f"scheduler is {name!r} but must be pbs, slurm or local")


__all__ = ["Ending", "JobStatus", "Phase", "Scheduler", "of"]
