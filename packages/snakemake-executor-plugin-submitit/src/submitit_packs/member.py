"""The process around one member: python -m submitit_packs.member PACK_DIRECTORY KEY ATTEMPT END_S.

It starts the member's command in a process group of its own, ends it at its deadline, when the
pack is to stop, or when its own parent dies, and writes how it ended. Nothing of the member
outlives it: neither its group nor what left the group.

Not in a new session: PBS finds a job's processes on other nodes by their session, and what has a
session of its own outlives `qdel`, on its GPU. Only the standard library is imported, because this
starts once a member.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from submitit_packs.directory import PackDirectory, Result, Start, State, last_line
from submitit_packs.launchers import pbs_node
from submitit_packs.model import Member, Pack
from submitit_packs.processes import adopt_orphans, die_with_parent, kill_descendants, run

GRACE_S = 10.0  # from TERM to KILL
# A member may die of the scheduler's signal before its wrapper hears that the pack stops.
STOP_FOLLOWS_S = 3.0
# Exit codes of this process: of a member that was not begun (EX_TEMPFAIL), and of one whose end
# could not be written (EX_IOERR).
DEFERRED, NO_RESULT = 75, 74
DISK_S = 60.0  # how long a full disk is waited for
TICK_S = 0.2
# The member is no rank of the launcher's, and no task of Parsl's.
FOREIGN = (
    *("PARSL_", "PMI_", "PMIX_", "PALS_", "MPI_LOCAL", "SLURM_STEP", "SLURM_TASK", "SLURM_LOCAL"),
    *("SLURM_PROCID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_SRUN", "SLURM_LAUNCH", "OMP_PLACES"),
    *("OMP_PROC_BIND", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"),
)


def main(arguments: list[str]) -> int:
    """Run a member; the exit code is 0 once its end is written, or DEFERRED, or NO_RESULT."""
    path, key, attempt, end_s = arguments
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    signals = Signals()
    directory = PackDirectory(Path(path))
    pack = directory.plan()
    if pack is None:
        print(f"{path}: has no plan", file=sys.stderr)
        return NO_RESULT
    member = next(m for m in pack.members if m.key == key)
    try:
        result = MemberRun(directory, pack, member, int(attempt), float(end_s), signals).result()
    except OSError as error:  # a full disk, most often; the member runs again
        print(f"{member.name}: its end is not written: {error}", file=sys.stderr)
        return NO_RESULT
    return DEFERRED if result.state == State.DEFERRED else 0


class Signals:
    """Flag for TERM or INT, from the scheduler or because the parent died."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a warning; the pack keeps its own time

    def _note(self, number: int, frame: object) -> None:
        self.came = True


@dataclass
class MemberRun:
    """One run of a member in one attempt of its pack, whose job is over at `end_s`."""

    directory: PackDirectory
    pack: Pack
    member: Member
    attempt: int
    end_s: float
    signals: Signals
    _looked_s: float = 0.0  # when the attempt file was read last, by the monotonic clock

    def result(self) -> Result:
        """Run the member if it has no final result yet, and write how it ended."""
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "") if self.member.gpus else ""
        with gpus_held(host(), gpu, lambda: self._stop() is not None) as locks:
            before = self.directory.result(self.member.key)
            if before and before.is_final:
                return before
            result = self._run(gpu, locks)
            self._write(result)
            return result

    def _run(self, gpu: str, locks: list[int]) -> Result:
        now = time.time()
        start = Start(host(), gpu, gpu_uuids(gpu), now, self.attempt)
        left_s = self.end_s - self.pack.margin_s - now
        code: int | None = None
        self._looked_s = 0.0
        if stop := self._stop():
            state, reason = State.KILLED, stop
        elif left_s < self.member.expected_s:
            state = State.DEFERRED
            reason = f"{left_s:.0f} s were left, {self.member.expected_s:.0f} s are expected"
        else:
            self.directory.write_start(self.member.key, start)
            state, code, reason = self._watch(start, min(self.member.timeout_s, left_s), locks)
        where = start.host, start.gpu, start.gpu_uuids
        said = self._last_line() if state == State.FAILED else ""
        return Result(state, code, *where, now, time.time(), self.attempt, reason, said)

    def _last_line(self) -> str:
        """Last line of the member's log, or else of its output."""
        logs = [Path(self.member.cwd, log) for log in self.member.logs]
        return last_line(logs) or last_line([self.directory.log(self.member.key)])

    def _write(self, result: Result) -> None:
        """Write a result; a full disk may have room again in a while."""
        until = time.monotonic() + DISK_S
        while True:
            try:
                self.directory.write_result(self.member.key, result)
                return
            except OSError:
                if self.signals.came or time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def _watch(self, start: Start, limit_s: float, locks: list[int]) -> tuple[State, int, str]:
        """Run the command to its end: its state, its exit code, and why."""
        with scratch() as temporary, self.directory.log(self.member.key).open("ab") as log:
            environment = member_environment(
                self.directory, self.pack, self.member, start, temporary
            )
            try:
                process = subprocess.Popen(
                    ["/bin/bash", "-c", self.member.command],
                    cwd=self.member.cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    pass_fds=locks,  # held as long as the command lives, whatever becomes of this
                )
            except OSError as error:  # its directory is not there
                return State.FAILED, 127, f"could not start: {error}"
            ending = self._wait(process, limit_s)
            code = process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kill_descendants()  # what left the group
        if ending is None and code < 0 and (stop := self._stop_after()):
            ending = State.KILLED, stop
        if ending is None:
            return (State.OK, 0, "") if code == 0 else (State.FAILED, code, words_of(code))
        state, reason = ending
        if state == State.TIMEOUT and limit_s < self.member.timeout_s:
            state, reason = State.KILLED, "its pack's time was over"
        return state, code, reason

    def _wait(self, process: "subprocess.Popen[bytes]", limit_s: float) -> tuple[State, str] | None:
        """Wait for the process; end it if it must, and say why."""
        began = time.monotonic()
        ending = None
        while ending is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TICK_S)
                return None
            if stop := self._stop():
                ending = State.KILLED, stop
            elif time.monotonic() - began > limit_s:
                ending = State.TIMEOUT, f"took more than {limit_s:.0f} s"
        end(process)
        return ending

    def _stop(self) -> str | None:
        """Reason to end the member now; the attempt file is read every `poll_s` seconds."""
        if self.signals.came:
            return "its pack was ended"
        now = time.monotonic()
        if now - self._looked_s <= self.pack.poll_s:
            return None
        self._looked_s = now
        current = self.directory.attempt()
        if current.number != self.attempt:
            return "its pack runs again elsewhere"
        return current.stop or None

    def _stop_after(self) -> str | None:
        """Reason of the pack's end after a member died of a signal; None if the pack goes on."""
        until = time.monotonic() + STOP_FOLLOWS_S
        while time.monotonic() < until:
            self._looked_s = 0.0
            if stop := self._stop():
                return stop
            time.sleep(TICK_S)
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process group: TERM, so that it can save its state, and KILL after a while."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return


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
def gpus_held(node: str, visible: str, is_over: Callable[[], bool]) -> Iterator[list[int]]:
    """Hold a lock of each of these GPUs; the descriptors of the lock files.

    A worker that Parsl starts anew must not begin a member while that of the worker before is
    still ending on the same GPU. The locks are of the node, not of the shared file system. They
    are not waited for any longer once `is_over`.
    """
    place = Path(f"/tmp/submitit-packs-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    locks = []
    try:
        for gpu in sorted(filter(None, visible.split(","))):
            locks.append(os.open(place / f"{node}-gpu{gpu}.lock", os.O_RDWR | os.O_CREAT, 0o600))
            while not _is_locked(locks[-1]) and not is_over():
                time.sleep(TICK_S)
        yield locks
    finally:
        for lock in locks:
            os.close(lock)


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def gpu_uuids(visible: str) -> tuple[str, ...]:
    """The UUIDs of the GPUs with these indices; none where nvidia-smi is absent or fails."""
    program = shutil.which("nvidia-smi")
    if not program or not visible:
        return ()
    command = [program, f"--id={visible}", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = run(command, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A directory for temporary files: on the node, and short, since names of sockets are."""
    with tempfile.TemporaryDirectory(
        prefix="m", dir=scratch_parent(), ignore_cleanup_errors=True
    ) as temporary:
        yield temporary


def scratch_parent() -> str:
    """Directory on the node's disks: PACK_SCRATCH if it can be written, else /tmp."""
    for parent in (os.environ.get("PACK_SCRATCH"), "/local/scratch"):
        if parent and os.access(parent, os.W_OK | os.X_OK):
            return parent
    return "/tmp"


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
