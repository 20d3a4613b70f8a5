"""The process around one member: python -m submitit_packs.member PACK_DIRECTORY KEY ATTEMPT END_S.

It starts the member's command in a process group of its own, ends it at its deadline, when the
pack is to stop, or when its own parent dies, and writes how it ended. Nothing of the member
outlives it: neither its group nor what left the group.

Not in a new session: PBS finds a job's processes on other nodes by their session, and what has a
session of its own outlives `qdel`, on its GPU. Only the standard library is imported, because this
starts once a member.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from submitit_packs.directory import PackDirectory, Result, Start, State
from submitit_packs.launchers import pbs_node
from submitit_packs.model import Member, Pack

GRACE_S = 10.0  # from TERM to KILL
# A member may die of the scheduler's signal before its wrapper hears that the pack stops.
STOP_FOLLOWS_S = 3.0
DEFERRED = 75  # exit code of this process for a member that was not begun (EX_TEMPFAIL)
TICK_S = 0.2
# The member is no rank of the launcher's, and no task of Parsl's.
FOREIGN = (
    *("PARSL_", "PMI_", "PMIX_", "PALS_", "MPI_LOCAL", "SLURM_STEP", "SLURM_TASK", "SLURM_LOCAL"),
    *("SLURM_PROCID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_SRUN", "SLURM_LAUNCH", "OMP_PLACES"),
    *("OMP_PROC_BIND", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"),
)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Run a member; the exit code is 0 once its end is written, or DEFERRED."""
    path, key, attempt, end_s = arguments
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    told = Signal()
    directory = PackDirectory(Path(path))
    pack = directory.plan()
    if pack is None:
        print(f"{path}: has no plan", file=sys.stderr)
        return 1
    member = next(m for m in pack.members if m.key == key)
    result = run(directory, pack, member, int(attempt), float(end_s), told)
    return DEFERRED if result.state == State.DEFERRED else 0


class Signal:
    """Whether TERM or INT came: from the scheduler, or because the parent died."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a warning; the pack keeps its own time

    def _note(self, number: int, frame: object) -> None:
        self.came = True


def run(
    directory: PackDirectory, pack: Pack, member: Member, attempt: int, end_s: float, told: Signal
) -> Result:
    """Run a member that has no final result yet, and write how it ended."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "") if member.gpus else ""
    with gpus_held(host(), gpu) as locks:
        return _run(directory, pack, member, attempt, end_s, told, gpu, locks)


def _run(
    directory: PackDirectory,
    pack: Pack,
    member: Member,
    attempt: int,
    end_s: float,
    told: Signal,
    gpu: str,
    locks: list[int],
) -> Result:
    before = directory.result(member.key)
    if before and before.is_final:
        return before
    now = time.time()
    start = Start(host(), gpu, gpu_uuids(gpu), now, attempt)
    result = Result(State.DEFERRED, None, start.host, gpu, start.gpu_uuids, now, now, attempt)
    left_s = end_s - pack.margin_s - now
    if left_s < member.expected_s:
        reason = f"{left_s:.0f} s were left, {member.expected_s:.0f} s are expected"
        result = replace(result, reason=reason)
    else:
        directory.write_start(member.key, start)
        limit_s = min(member.timeout_s, left_s)
        state, code, reason = _watch(directory, pack, member, start, limit_s, told, locks)
        result = replace(result, state=state, exit_code=code, reason=reason, end_s=time.time())
    directory.write_result(member.key, result)
    return result


def _watch(
    directory: PackDirectory,
    pack: Pack,
    member: Member,
    start: Start,
    limit_s: float,
    told: Signal,
    locks: list[int],
) -> tuple[State, int, str]:
    """Run the command to its end: its state, its exit code, and why."""
    with scratch() as temporary, directory.log(member.key).open("ab") as log:
        environment = member_environment(directory, pack, member, start, temporary)
        process = subprocess.Popen(
            ["/bin/bash", "-c", member.command],
            cwd=member.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=locks,  # held as long as the command lives, whatever becomes of this process
        )
        ending = _wait(directory, pack, start.attempt, process, limit_s, told)
        code = process.wait()
        kill_rest(process.pid)
    if ending is None and code < 0:
        ending = _stop_after(directory, start.attempt, told)
    if ending is None:
        return (State.OK, 0, "") if code == 0 else (State.FAILED, code, words_of(code))
    state, reason = ending
    if state == State.TIMEOUT and limit_s < member.timeout_s:
        state, reason = State.KILLED, "its pack's time was over"
    return state, code, reason


def _wait(
    directory: PackDirectory,
    pack: Pack,
    attempt: int,
    process: subprocess.Popen[bytes],
    limit_s: float,
    told: Signal,
) -> tuple[State, str] | None:
    """Wait for the process; end it if it must, and say why."""
    began = looked = time.monotonic()
    ending = None
    while ending is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TICK_S)
            return None
        now = time.monotonic()
        if told.came:
            ending = State.KILLED, "its pack was ended"
        elif now - began > limit_s:
            ending = State.TIMEOUT, f"took more than {limit_s:.0f} s"
        elif now - looked > pack.poll_s:
            looked = now
            ending = _stopped(directory, attempt)
    end(process)
    return ending


def _stopped(directory: PackDirectory, attempt: int) -> tuple[State, str] | None:
    current = directory.attempt()
    if current.number != attempt:
        return State.KILLED, "its pack runs again elsewhere"
    return (State.KILLED, current.stop) if current.stop else None


def _stop_after(directory: PackDirectory, attempt: int, told: Signal) -> tuple[State, str] | None:
    """Of a member that died of a signal: whether its pack is being ended."""
    until = time.monotonic() + STOP_FOLLOWS_S
    while time.monotonic() < until:
        if told.came:
            return State.KILLED, "its pack was ended"
        if stopped := _stopped(directory, attempt):
            return stopped
        time.sleep(TICK_S)
    return None


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process group: TERM, so that it keeps what it has, and KILL after a while."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return


def kill_rest(group: int) -> None:
    """Kill what the member left behind: its group, and descendants that left the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # until there is no child left
        while True:
            for pid in _children():  # those that lost their parents became ours
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(word) for word in path.read_text().split()]


def words_of(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


# ------------------------------------------------------------------ where it runs


def host() -> str:
    """The node's name, as the batch system has it."""
    given = os.environ.get("PACK_NODE") or os.environ.get("SLURMD_NODENAME")
    return given or pbs_node() or os.uname().nodename


@contextlib.contextmanager
def gpus_held(node: str, visible: str) -> Iterator[list[int]]:
    """Hold a lock of each of these GPUs; the descriptors of the lock files.

    A worker that Parsl starts anew must not begin a member while that of the worker before is
    still ending on the same GPU. The locks are of the node, not of the shared file system.
    """
    place = Path(f"/tmp/submitit-packs-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    locks = []
    try:
        for gpu in sorted(filter(None, visible.split(","))):
            locks.append(os.open(place / f"{node}-gpu{gpu}.lock", os.O_RDWR | os.O_CREAT, 0o600))
            fcntl.flock(locks[-1], fcntl.LOCK_EX)
        yield locks
    finally:
        for lock in locks:
            os.close(lock)


def gpu_uuids(visible: str) -> tuple[str, ...]:
    """The UUIDs of the GPUs with these indices; none where nvidia-smi is absent or fails."""
    program = shutil.which("nvidia-smi")
    if not program or not visible:
        return ()
    command = [program, f"--id={visible}", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A directory for temporary files: on the node, and short, since names of sockets are."""
    for parent in (os.environ.get("PACK_SCRATCH"), "/local/scratch", "/tmp"):
        if parent and os.access(parent, os.W_OK | os.X_OK):
            break
    with tempfile.TemporaryDirectory(
        prefix="m", dir=parent, ignore_cleanup_errors=True
    ) as temporary:
        yield temporary


def member_environment(
    directory: PackDirectory, pack: Pack, member: Member, start: Start, temporary: str
) -> dict[str, str]:
    """The member's environment: its GPUs, its pack, and no variable of a launcher's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    # A batch system starts with a bare PATH: the programs beside this Python are the first in it.
    programs = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    return kept | {
        "PATH": os.pathsep.join(programs),
        "CUDA_VISIBLE_DEVICES": start.gpu,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TMPDIR": temporary,
        "PACK_NODE": start.host,
        "PACK_DIRECTORY": str(directory.path),
        "PACK_MEMBER": member.key,
        "PACK_EXCLUSIVE": "1" if pack.exclusive else "0",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
