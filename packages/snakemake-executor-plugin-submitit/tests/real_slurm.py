"""A real Slurm on loopback: one slurmctld, several slurmd of this machine, munged, fake GPUs.

It needs Debian's packages slurmctld, slurmd, slurm-client and munge, and root. There is no
accounting: `sacct` answers that it is disabled, as on many small clusters. A requeued job begins
again when its credential has expired, hence soon.

Each daemon is the child of a process that stands for its machine (`python real_slurm.py COMMAND…`):
all that a node's jobs start are its descendants, even those that leave their session, and end with
it. It ends with the process that started it, so that an interrupted test run leaves nothing.
"""

import fcntl
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil

from submitit_packs.processes import adopt_orphans, die_with_parent, kill_descendants

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
INSTALL = "as root, apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
PATIENCE_S = 120.0
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
Prolog={state}/prolog
PrologFlags=Alloc
MailProg=/bin/true
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
SlurmdTimeout=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports}] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=prod Nodes=ALL Default=YES MaxTime=30 MaxNodes=2 State=UP OverSubscribe=EXCLUSIVE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=long Nodes=ALL MaxTime=60 MaxNodes=1 State=UP OverSubscribe=EXCLUSIVE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=demand Nodes=ALL MaxTime=60 State=UP OverSubscribe=EXCLUSIVE PriorityTier=10 PreemptMode=OFF
PartitionName=physics Nodes=ALL MaxTime=60 State=UP OverSubscribe=EXCLUSIVE PriorityTier=1 PreemptMode=OFF AllowAccounts=physics
"""  # noqa: E501
# A node whose file is there does not start a job: it is drained, and the job is held.
PROLOG = '#!/bin/sh\ntest ! -e {state}/broken."$SLURMD_NODENAME"\n'


def missing() -> list[str]:
    """Parts that this machine lacks for a Slurm."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return lacking + ([] if os.geteuid() == 0 else ["root"])


class Slurm:
    """A running Slurm; `environment` makes its commands talk to it."""

    def __init__(self, nodes: int = 14, gpus: int = 2) -> None:
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.gpus = gpus
        self.machines: dict[str, psutil.Popen] = {}
        self.lost: list[str] = []  # nodes that were stopped, until `clear` starts them
        self._stack = ExitStack()
        # Short: sockets are in it.
        self.state = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.environment = {"SLURM_CONF": str(self.state / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._configure(self._stack.enter_context(free_ports(len(self.nodes) + 1)))
            munge = ["--force", "--foreground", f"--socket={self.state}/munge.socket"]
            munge += [f"--key-file={self.state}/munge.key", f"--pid-file={self.state}/munge.pid"]
            munge += [f"--log-file={self.state}/munge.log", f"--seed-file={self.state}/munge.seed"]
            self._start("munged", "munged", *munge)
            until("munged listens", lambda: (self.state / "munge.socket").exists())
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            until("nodes are idle", lambda: self.idle() == self.nodes)
        except BaseException:
            logs = "\n".join(p.read_text()[-1500:] for p in self.state.glob("*.log"))
            print(logs, file=sys.stderr)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.machines)):
            self.stop(name)
        self._stack.close()
        shutil.rmtree(self.state, ignore_errors=True)

    def _configure(self, first_port: int) -> None:
        for name in ("state", *(f"slurmd.{node}" for node in self.nodes)):
            (self.state / name).mkdir()
        count = len(self.nodes)
        text = CONFIGURATION.format(
            state=self.state,
            nodes=count,
            gpus=self.gpus,
            controller_port=first_port + count,
            ports=f"{first_port}-{first_port + count - 1}",
        )
        (self.state / "slurm.conf").write_text(text)
        files = self.state / f"gpu[0-{self.gpus - 1}]"
        for gpu in range(self.gpus):
            (self.state / f"gpu{gpu}").touch()  # Slurm wants files, and sets no variables for these
        gres = f"NodeName=n[1-{count}] Name=gpu File={files}\n"
        (self.state / "gres.conf").write_text(gres)
        (self.state / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.state / "munge.key").chmod(0o400)
        (self.state / "prolog").write_text(PROLOG.format(state=self.state))
        (self.state / "prolog").chmod(0o755)

    # ------------------------------------------------------------------ machines

    def _start(self, name: str, *command: str) -> None:
        with (self.state / f"{name}.out").open("ab") as log:
            self.machines[name] = psutil.Popen(
                [sys.executable, __file__, *command],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", "slurmctld", "-D")

    def shut_down_controller(self) -> None:
        """End slurmctld, which keeps its state."""
        self.call("scontrol", "shutdown", "slurmctld")
        self.machines.pop("slurmctld").wait()

    def start_node(self, name: str) -> None:
        """Start a node."""
        self._start(name, "slurmd", "-D", "-N", name)

    def stop(self, name: str) -> None:
        """A machine loses its power: its daemon, its jobs, and all that runs in them."""
        machine = self.machines.pop(name)
        machine.terminate()
        machine.wait()

    def processes(self, node: str) -> list[psutil.Process]:
        """Processes of a node's jobs: all of the machine's processes but slurmd."""
        with suppress(psutil.Error):
            (daemon,) = self.machines[node].children()[:1] or [None]
            result = self.machines[node].children(recursive=True)
            return [p for p in result if p != daemon and is_alive(p)]
        return []

    def find(self, *words: str) -> list[psutil.Process]:
        """The processes of jobs, on all nodes, whose command lines have these words."""
        results = []
        for node in self.machines.keys() & self.nodes:
            for process in self.processes(node):
                with suppress(psutil.Error):
                    line = " ".join(process.cmdline())
                    if all(word in line for word in words):
                        results.append(process)
        return results

    # ------------------------------------------------------------------ commands

    def call(self, *command: str) -> str:
        """Output of a command of Slurm's."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def idle(self) -> list[str]:
        """The nodes that are idle."""
        with suppress(OSError):
            lines = self.call("sinfo", "--noheader", "--Node", "--partition=prod", "--format=%N %T")
            pairs = (line.split() for line in lines.splitlines())
            return [node for node, state in pairs if state in ("idle", "planned")]
        return []

    def answers(self) -> bool:
        """Whether slurmctld answers."""
        with suppress(OSError):
            self.call("scontrol", "ping")
            self.call("squeue")
            return True
        return False

    def clear(self) -> None:
        """Cancel all jobs, mend all nodes, and wait until they are idle."""
        self.call("scancel", "--user=root")
        for node in self.lost:
            self.start_node(node)
        self.lost = []
        names = ",".join(self.nodes)

        def are_idle() -> bool:
            with suppress(OSError):  # a node that is not down cannot be resumed
                self.call("scontrol", "update", f"nodename={names}", "state=resume")
            return self.idle() == self.nodes

        until("all nodes are idle", are_idle)

    def jobs(self, state: str = "all") -> dict[str, str]:
        """The jobs in a state: {name: id}."""
        text = self.call("squeue", "--noheader", f"--states={state}", "--format=%j %i")
        return dict(line.split() for line in text.splitlines())

    def nodes_of(self, job: str) -> list[str]:
        """The nodes of a job, its first one first."""
        names = self.call("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
        return self.call("scontrol", "show", "hostnames", names).split()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until(what: str, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    limit = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.2)


@contextmanager
def free_ports(count: int) -> Iterator[int]:
    """The first of `count` ports in a row that nobody listens on, and no other test run takes."""
    firsts = list(range(17100, 30000, 100))
    random.shuffle(firsts)
    for first in firsts:
        with (Path(tempfile.gettempdir()) / f"real-slurm-{first}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for port in range(first, first + count):
                    with socket.socket() as trial:
                        trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield first
            return
    raise OSError("no free ports")


def machine(command: list[str]) -> None:
    """Run a daemon until it ends, or this process is terminated or left alone."""
    adopt_orphans()
    die_with_parent(signal.SIGTERM)
    parent = os.getppid()

    def end(*_: object) -> None:
        kill_descendants()
        if os.getppid() != parent:  # an interrupted test run
            shutil.rmtree(Path(os.environ["SLURM_CONF"]).parent, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    daemon = subprocess.Popen(command)
    while daemon.pid != os.waitpid(-1, 0)[0]:  # reap what jobs leave
        pass
    end()


if __name__ == "__main__":
    machine(sys.argv[1:])
