"""Launchers, which start a command once on every node of an allocation: one call a pack."""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from submitit_packs.errors import BadSettings

Launcher = Callable[[int, str], str]
# What a program that is started by pbs_tmrsh must be given: its environment is bare, PATH included.
# It has PBS's own variables.
PASSED = ("PATH", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV", "CONDA", "HOME", "USER", "LOGNAME")


def launch(name: str, nodes: int, command: str) -> str:
    """Shell text that runs `command` once on each of `nodes` nodes, and waits for all.

    It runs in the present directory on each: pbs_tmrsh starts programs in the home directory. PBS
    sets OMP_NUM_THREADS to the CPUs that a chunk asks for, one by default: here a node's CPUs are
    all of the pack's, and the command decides.
    """
    lines = ["unset OMP_NUM_THREADS NCPUS"] if pbs_hosts() else []
    return of(name)(nodes, "\n".join([*lines, f"cd {shlex.quote(os.getcwd())} || exit", command]))


def of(name: str) -> Launcher:
    """The launcher of a name; BadSettings names those that there are."""
    if name not in LAUNCHERS:
        raise BadSettings(f"launcher is {name!r} but must be one of {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]


def usable(name: str, nodes: int) -> tuple[str, str]:
    """The launcher to use in this job, and a sentence if it is not the one of this name.

    A single node needs none, and each node of a PBS job has pbs_tmrsh. BadSettings if there is no
    program of this name, and none that could take its place.
    """
    of(name)
    if name == "fork" or program(name):
        return name, ""
    missing = f"there is no {name} in PATH on {os.uname().nodename}"
    if nodes == 1:
        return "fork", f"{missing}; a single node needs no launcher"
    if pbs_hosts() and program("pbs_tmrsh"):
        return "pbs_tmrsh", f"{missing}; the nodes are started with pbs_tmrsh"
    raise BadSettings(f"{missing}: load its module in the setup lines, or choose another launcher")


def program(name: str) -> str | None:
    """Path of a launcher's program; None if it is missing.

    PBS has an `mpiexec` beside `pbs_tmrsh` that starts nothing itself: it looks for another one.
    """
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = shutil.which(name, path=directory)
        if path and not (name == "mpiexec" and shutil.which("pbs_tmrsh", path=directory)):
            return path
    return None


def mpiexec(nodes: int, command: str) -> str:
    """PALS or another MPI's: one rank a node, unbound, and a dead rank ends no other."""
    options = f"-n {nodes} --ppn 1 --cpu-bind none"
    return f"exec {program('mpiexec') or 'mpiexec'} {options} /bin/bash -c {shlex.quote(command)}"


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
    try:
        return list(dict.fromkeys(Path(path).read_text().split())) if path else []
    except OSError:  # PBS writes it on the first node only
        return []


def pbs_node() -> str | None:
    """Name of this node in PBS; None outside of a job.

    It is the node's own name, unless several nodes of the job have the same one; then mpiexec's
    rank tells, of which each node has one.
    """
    hosts = pbs_hosts()
    node_name = os.uname().nodename.partition(".")[0]
    for host in hosts:
        if host.partition(".")[0] == node_name:
            return host
    rank = os.environ.get("PMI_RANK", os.environ.get("PBS_NODENUM", ""))
    return hosts[int(rank)] if rank.isdigit() and int(rank) < len(hosts) else None


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
