"""Batch systems: submitit writes the job scripts and submits them, one command a cycle looks.

submitit's own `state`, `done()` and `result()` are not used: they look once and remember, swallow
the status command's errors, and take a stopped job for a finished one.
"""

import re
from collections.abc import Mapping
from typing import Any

from submitit_packs.errors import BadSettings
from submitit_packs.schedulers.scheduler import Ending, JobStatus, Phase, Scheduler

# Parameters of submitit that every pack sets by itself.
OF_PACKS = {
    *("job_name", "nodes", "time", "walltime", "queue", "partition", "use_srun"),
    *("stderr_to_stdout", "signal_delay_s", "array_parallelism"),
    *("tasks_per_node", "ntasks_per_node", "select"),
}
# Parameters that are no single value.
SHAPES = {"setup": list, "teardown": list, "directives": list, "resources": dict} | {
    "additional_parameters": dict
}


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """BadSettings for an option that is no parameter of this batch system, or no user's to set."""
    parameters = of(name).parameters - OF_PACKS
    for option, value in options.items():
        cluster, _, parameter = option.partition("_")
        if cluster != name or parameter not in parameters:
            why = "is set by the packs" if parameter in OF_PACKS else "is none"
            names = ", ".join(f"{name}_{each}" for each in sorted(parameters))
            raise BadSettings(f"option {option} {why}; there are {names or 'no options'} of {name}")
        shape = SHAPES.get(parameter)
        if shape and value is not None and not isinstance(value, shape):
            words = "a list, [a]" if shape is list else "a mapping, {a: b}"
            raise BadSettings(f"option {option} is {value!r} but must be {words}")


def of(name: str, account: str | None = None) -> Scheduler:
    """The batch system of a name: pbs, slurm or local; BadSettings for an account of two words."""
    if account and not re.fullmatch(r"\S+", account):
        raise BadSettings(f"account is {account!r} but must be one word")
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


__all__ = ["Ending", "JobStatus", "Phase", "Scheduler", "check_options", "of"]
