"""How a command is started once on every node of an allocation: one launcher call a pack."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from submitit_packs.errors import BadSettings

Launcher = Callable[[int, str], str]
# What a program that is started by pbs_tmrsh must be given: its environment is bare, PATH included.
PASSED = ("PBS_", "PATH", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV", "CONDA", "HOME", "USER")


def launch(name: str, nodes: int, command: str) -> str:
    """Shell text that runs `command` once on each of `nodes` nodes, and waits for all."""
    return of(name)(nodes, command)


def of(name: str) -> Launcher:
    """The launcher of a name; BadSettings names those that there are."""
    if name not in LAUNCHERS:
        raise BadSettings(f"launcher is {name!r} but must be one of {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]


def mpiexec(nodes: int, command: str) -> str:
    """PALS or another MPI's: one rank a node, unbound, and a dead rank ends no other."""
    options = f"-n {nodes} --ppn 1 --cpu-bind none"
    return f"exec mpiexec {options} /bin/bash -c {shlex.quote(command)}"


def srun(nodes: int, command: str) -> str:
    """Slurm's: one task a node that may use all of it; a lost node ends no other."""
    options = f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --overlap"
    options += " --kill-on-bad-exit=0 --no-kill --cpu-bind=none"
    return f"exec srun {options} /bin/bash -c {shlex.quote(command)}"


def pbs_tmrsh(nodes: int, command: str) -> str:
    """PBS's: a remote shell into each node of the job."""
    passed = " ".join(
        f"{key}={shlex.quote(value)}" for key, value in os.environ.items() if key.startswith(PASSED)
    )
    lines = []
    for number, host in enumerate(pbs_hosts()[:nodes]):
        text = f"export {passed} PACK_NODE={host}; {command}"
        remote = f"pbs_tmrsh {host} " if number else ""  # the first is this one
        lines.append(f"{remote}/bin/bash -c {shlex.quote(text)} &")
    return "\n".join([*lines, "wait"])


def pbs_hosts() -> list[str]:
    """The nodes of the PBS job, each once, in order."""
    path = os.environ.get("PBS_NODEFILE")
    return list(dict.fromkeys(Path(path).read_text().split())) if path else []


def fork(nodes: int, command: str) -> str:
    """One machine stands for all nodes: for a single node, and for tests."""
    if nodes == 1:
        return f"exec /bin/bash -c {shlex.quote(command)}"
    names = (f"PACK_NODE=node{number}" for number in range(nodes))
    return "\n".join([*(f"{n} /bin/bash -c {shlex.quote(command)} &" for n in names), "wait"])


LAUNCHERS: dict[str, Launcher] = {
    "mpiexec": mpiexec,
    "srun": srun,
    "pbs_tmrsh": pbs_tmrsh,
    "fork": fork,
}
