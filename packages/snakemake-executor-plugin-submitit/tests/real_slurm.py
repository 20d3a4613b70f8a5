"""A real Slurm on loopback: one slurmctld, several slurmd of this machine, munged, fake GPUs.

It needs Debian's packages slurmctld, slurmd, slurm-client and munge, and root. There is no
accounting: `sacct` answers that it is disabled, as on many small clusters. A requeued job begins
again when its credential has expired, hence soon.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
PATIENCE_S = 60.0
CONFIGURATION = """
ClusterName=toy
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmdSpoolDir={state}/slurmd.%n
StateSaveLocation={state}/state
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%n.log
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=8
MinJobAge=300
SlurmdTimeout=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports}] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=prod Nodes=ALL Default=YES MaxTime=60 MaxNodes={nodes} State=UP OverSubscribe=EXCLUSIVE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=demand Nodes=ALL MaxTime=60 State=UP OverSubscribe=EXCLUSIVE PriorityTier=10 PreemptMode=OFF
"""  # noqa: E501


def missing() -> list[str]:
    """What this machine lacks for a Slurm."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return lacking + ([] if os.geteuid() == 0 else ["root"])


class Slurm:
    """A running Slurm; `environment` makes its commands talk to it."""

    def __init__(self, state: Path, nodes: int = 3, gpus: int = 2) -> None:
        self.state, self.nodes, self.gpus = state, nodes, gpus
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {"SLURM_CONF": str(state / "slurm.conf")}

    def __enter__(self) -> Self:
        self._configure()
        munge = ["--force", "--foreground", f"--socket={self.state}/munge.socket"]
        munge += [f"--key-file={self.state}/munge.key", f"--pid-file={self.state}/munge.pid"]
        munge += [f"--log-file={self.state}/munge.log", f"--seed-file={self.state}/munge.seed"]
        self._start("munged", "munged", *munge)
        self._until("munged listens", lambda: (self.state / "munge.socket").exists())
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for number in range(self.nodes):
            self.start_node(f"n{number + 1}")
        self._until("nodes are idle", lambda: self.idle() == self.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.CalledProcessError):
            self.call("scancel", "--user=root")
        for name in reversed(list(self.daemons)):
            self.stop(name)

    def _configure(self) -> None:
        for name in ("state", *(f"slurmd.n{n + 1}" for n in range(self.nodes))):
            (self.state / name).mkdir(parents=True)
        first = free_ports(self.nodes + 1)
        text = CONFIGURATION.format(
            state=self.state,
            nodes=self.nodes,
            gpus=self.gpus,
            controller_port=first + self.nodes,
            ports=f"{first}-{first + self.nodes - 1}",
        )
        (self.state / "slurm.conf").write_text(text)
        files = self.state / f"gpu[0-{self.gpus - 1}]"
        for gpu in range(self.gpus):
            (self.state / f"gpu{gpu}").touch()  # Slurm wants files, and sets no variables for these
        gres = f"NodeName=n[1-{self.nodes}] Name=gpu File={files}\n"
        (self.state / "gres.conf").write_text(gres)
        (self.state / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.state / "munge.key").chmod(0o400)

    def _start(self, name: str, *command: str) -> None:
        with (self.state / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        self._start(name, "slurmd", "-D", "-N", name)

    def stop(self, name: str) -> None:
        """End a daemon, at once."""
        process = self.daemons.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def lose(self, node: str) -> None:
        """A node loses its power: its slurmd, its job steps, and all that runs in them."""
        self.stop(node)
        for pid in self.processes_of(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes_of(self, node: str) -> list[int]:
        """The processes of a node's jobs: those that have its name in their environment."""
        marks = (f"SLURMD_NODENAME={node}\0".encode(), f"SLURM_CONF={self.state}".encode())
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                content = path.read_bytes()
                if all(mark in content for mark in marks):
                    found.append(int(path.parent.name))
        return found

    def call(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def idle(self) -> int:
        """The nodes that are idle."""
        try:
            states = self.call("sinfo", "--noheader", "--Node", "--partition=prod", "--format=%T")
        except subprocess.CalledProcessError:
            return 0
        return states.split().count("idle")

    def jobs(self, state: str = "all") -> dict[str, str]:
        """The jobs in a state: {id: name}."""
        text = self.call("squeue", "--noheader", f"--states={state}", "--format=%i %j")
        return dict(line.split(None, 1) for line in text.splitlines())

    def _until(self, what: str, condition) -> None:
        limit = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > limit:
                logs = "\n".join(p.read_text()[-1500:] for p in self.state.glob("*.log"))
                raise TimeoutError(f"not within {PATIENCE_S:.0f} s: {what}\n{logs}")
            time.sleep(0.2)


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(17100, 30000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                found = socket.socket()
                sockets.append(found)
                found.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for found in sockets:
                found.close()
    raise OSError("no free ports")
