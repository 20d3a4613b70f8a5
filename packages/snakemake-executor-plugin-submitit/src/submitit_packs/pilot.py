"""Program of a pack's job, on its first node: python -m submitit_packs.pilot PACK_DIRECTORY.

It starts the pack's members with Parsl's HighThroughputExecutor: one launcher call starts a
manager on every node, a manager has one worker a slot, and a worker takes one member after the
other. Nothing is started again here: with a manager that is started anew beside one that was only
believed dead, two members were seen on one GPU. Members that are lost with a manager or with the
launcher come back in another pack of the controller's.

An engine is a function of an `Allocation`; what it must keep to are the files of
`submitit_packs.directory`, so that another can take its place.
"""

import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from submitit_packs import processes
from submitit_packs.directory import STARTED, PackDirectory, tail, write_json
from submitit_packs.launchers import launch, usable
from submitit_packs.member import host
from submitit_packs.model import Member, Pack
from submitit_packs.processes import adopt_orphans, kill_descendants

STOPPED = 143  # exit code of a pilot that was told to stop
LOST = 3  # exit code of a pilot that lost its launcher
KILLED = 128  # a shell's exit codes above this are signals
TICK_S = 0.2
# Parsl's manager names a socket in TMPDIR, and PBS's TMPDIR can be too long for that.
SHORT_TMPDIR = 'export TMPDIR="${PACK_SCRATCH:-/tmp}"'
JOB_FILE_S = 10.0  # how long the controller may take from a job's submission to its job.json
# How long members have to end once the pack is to stop. While the pilot lives, PBS leaves the other
# nodes in peace; it kills them as soon as the first node's shell is gone.
STOP_S = 25.0
# How long nodes may take until the first worker takes a member. An import from a cold file system
# takes minutes; workers that die while they start are started again and again by Parsl.
WORKERS_S = 1200.0
END_S = 10.0  # how long Parsl has to end its processes, and what it leaves is killed


@dataclass
class Allocation:
    """Pack in its job, as an engine sees it."""

    directory: PackDirectory
    pack: Pack
    attempt: int
    end_s: float  # when the job is over, in seconds since 1970
    members: list[Member]
    stop: threading.Event = field(default_factory=threading.Event)
    lost: dict[str, str] = field(default_factory=dict)
    ready_s: float | None = None
    is_launcher_killed: bool = False
    note: str = ""  # what is not as it was planned


def main(path: str) -> None:
    """Run the rest of a pack, and end with all processes that were started here."""
    try:
        code = run(PackDirectory(Path(path)))
    except OSError as error:  # a full disk, most often
        print(f"{path}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    kill_descendants(END_S)
    # Threads of Parsl that wait for a launcher that hangs must not keep the job.
    os._exit(code)


def run(directory: PackDirectory) -> int:
    """Run the rest of a pack; the exit code of its job."""
    began_s = time.time()
    adopt_orphans()
    pack = directory.plan()
    if pack is None:
        print(f"{directory.path}: has no plan", file=sys.stderr)
        return 1
    if not is_job_of(directory):
        print("another job runs this pack", file=sys.stderr)
        return 0
    attempt = directory.begin_attempt(host())
    seen = set(directory.keys())  # one listing instead of a look for each member
    results = {key: directory.result(key) for key in seen}
    left = [m for m in pack.members if not ((r := results.get(m.key)) and r.is_final)]
    here = Allocation(directory, pack, attempt, began_s + pack.walltime_s, left)
    signal.signal(signal.SIGTERM, lambda *_: here.stop.set())
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's warning; the pack keeps its time
    error = ""
    try:
        if left:
            parsl_engine(here)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
        print(error, file=sys.stderr)
    code = STOPPED if here.stop.is_set() else LOST if here.lost or error else 0
    if code:
        directory.stop(attempt, "its pack was ended" if code == STOPPED else "its pack was lost")
    _account(here, began_s, error)
    return code


def is_job_of(directory: PackDirectory) -> bool:
    """True if this job is the pack's: a controller that died while it submitted may leave two."""
    mine = os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID", "").partition(".")[0]
    until = time.time() + JOB_FILE_S
    while mine and directory.job() is None and time.time() < until:
        time.sleep(TICK_S)
    job = directory.job()
    return not mine or job is None or str(job["job_id"]) == mine


def _account(here: Allocation, began_s: float, error: str) -> None:
    facts = {
        "attempt": here.attempt,
        "host": host(),
        "members": len(here.members),
        "start_s": began_s,
        "ready_s": here.ready_s,
        "end_s": time.time(),
        "lost": here.lost,
        "is_launcher_killed": here.is_launcher_killed,
        "error": error,
        "note": here.note,
    }
    write_json(here.directory.path / f"pilot-{here.attempt}.json", facts)


# ------------------------------------------------------------------ the engine: Parsl


def parsl_engine(here: Allocation) -> None:
    """Run the members with Parsl, until all ended, the pack is to stop, or the launcher is gone."""
    import parsl
    from parsl.config import Config

    work = here.directory.path / f"parsl-{here.attempt}"
    config = Config(
        executors=[_executor(here, work)],
        run_dir=str(work),
        strategy="none",
        retries=0,
        usage_tracking=0,
        exit_mode="skip",
    )
    kernel = parsl.load(config)
    here.ready_s = time.time()
    app = parsl.python_app(run_member, executors=["pack"], cache=False)
    place = str(here.directory.path)
    futures = {m.key: app(place, m.key, here.attempt, here.end_s) for m in here.members}
    _wait(here, futures)
    _in_time(kernel.cleanup, END_S)


def _wait(here: Allocation, futures: dict[str, Any]) -> None:
    until = time.time() + WORKERS_S
    looked_s = time.monotonic()
    while futures and not here.stop.is_set():
        time.sleep(TICK_S)
        if time.monotonic() - looked_s > here.pack.poll_s:
            looked_s = time.monotonic()
            if _is_over(here):  # of a job that the batch system believes to have ended
                here.stop.set()
        if time.time() > until:
            until = float("inf")
            _check_workers(here)
        for key in [key for key, future in futures.items() if future.done()]:
            future = futures.pop(key)
            if words := str(future.exception() or future.result()):
                here.lost[key] = " ".join(words.split())[:300]
    if here.stop.is_set() or any("launcher" in why for why in here.lost.values()):
        here.directory.stop(here.attempt, "its pack was ended")
        _await_ends(here)


def _check_workers(here: Allocation) -> None:
    """RuntimeError with the workers' last words if none of them has taken a member."""
    starts = map(here.directory.start, here.directory.keys(STARTED))
    if any(start and start.attempt == here.attempt for start in starts):
        return
    logs = sorted((here.directory.path / f"parsl-{here.attempt}").rglob("submit_scripts/*.err"))
    words = tail(logs[-1], 1) if logs else ""
    raise RuntimeError(f"no worker began within {WORKERS_S:.0f} s{': ' if words else ''}{words}")


def _is_over(here: Allocation) -> bool:
    """True if the controller, or a later run of the job, has ended this attempt."""
    current = here.directory.attempt()
    return current.number != here.attempt or bool(current.stop)


def _await_ends(here: Allocation) -> None:
    """Wait until the members that were begun have ended."""
    until = time.time() + STOP_S
    while time.time() < until:
        if not any(_is_running(here, key) for key in here.directory.keys(STARTED)):
            return
        time.sleep(1.0)


def _is_running(here: Allocation, key: str) -> bool:
    """True if a member was begun in this attempt, and has not ended."""
    start, result = here.directory.start(key), here.directory.result(key)
    began = start is not None and start.attempt == here.attempt
    return began and (result is None or result.attempt != here.attempt)


def _in_time(function: Callable[[], None], seconds: float) -> None:
    """Call a function that may hang on a lost node, and wait for it no longer than this."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)


def run_member(place: str, key: str, attempt: int, end_s: float) -> str:
    """Run the process around a member, in a worker of Parsl's; the reason if it has no result."""
    import subprocess
    import sys

    from submitit_packs.member import DEFERRED

    command = [sys.executable, "-m", "submitit_packs.member", place, key, str(attempt), str(end_s)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode in (0, DEFERRED):
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"its process ended with exit code {done.returncode}"


def _executor(here: Allocation, work: Path) -> Any:
    from parsl.executors import HighThroughputExecutor
    from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD
    from parsl.launchers.base import Launcher
    from parsl.providers import LocalProvider

    pack = here.pack
    launcher, other_launcher = usable(pack.launcher, pack.nodes)
    affinity, no_affinity = usable_affinity(pack.affinity)
    here.note = ". ".join(filter(None, (other_launcher, no_affinity)))
    if here.note:
        print(here.note, file=sys.stderr)

    class OneCall(Launcher):  # type: ignore[misc]
        """One launcher call for the whole pack."""

        def __call__(self, command: str, _tasks: int, nodes: int, script_dir: str = "") -> str:
            lines = [*pack.setup, SHORT_TMPDIR, *staging(here), f"exec {command}"]
            return launch(launcher, nodes, "\n".join(lines))

    # By its interpreter: a launcher may give an environment without PATH.
    manager = f"{sys.executable} -m parsl.executors.high_throughput.process_worker_pool "
    interchange = [sys.executable, "-m", "parsl.executors.high_throughput.interchange"]
    # Without the pilot it would go on, and with it the managers of all nodes.
    interchange = [sys.executable, "-m", "submitit_packs.processes", *interchange]
    return HighThroughputExecutor(
        label="pack",
        address=address(pack),
        available_accelerators=accelerators(pack),
        max_workers_per_node=pack.slots_per_node,
        cores_per_worker=1e-6,
        cpu_affinity=affinity,
        prefetch_capacity=0,
        heartbeat_period=max(1, round(pack.heartbeat_s)),
        heartbeat_threshold=max(2, round(4 * pack.heartbeat_s)),
        launch_cmd=manager + DEFAULT_LAUNCH_CMD.split(" ", 1)[1],
        interchange_launch_cmd=interchange,
        block_error_handler=partial(_launcher_ended, here),
        worker_logdir_root=str(work),
        provider=LocalProvider(
            nodes_per_block=pack.nodes,
            launcher=OneCall(),
            init_blocks=1,
            min_blocks=1,
            max_blocks=1,
        ),
    )


def staging(here: Allocation) -> list[str]:
    """Shell lines with which a node imports from its own disks, if the pack has an archive."""
    if not here.pack.stage:
        return []
    command = [sys.executable, "-m", "submitit_packs.stage", here.pack.stage, here.directory.path]
    first = f"staged=$({shlex.join(map(str, command))})"
    return [f'{first} && export PYTHONPATH="$staged${{PYTHONPATH:+:$PYTHONPATH}}"']


def _launcher_ended(here: Allocation, executor: Any, status: dict[str, Any]) -> None:
    """Give up the unfinished members once the launcher has ended, whatever its exit code."""
    ended = [member for member in status.values() if member.terminal]
    if ended and len(ended) == len(status):
        code = ended[0].exit_code
        here.is_launcher_killed = code is None or code > KILLED
        message = f"the launcher ended with exit code {code}"
        if said := (ended[0].stderr_summary or "").strip():
            message += f": {said.splitlines()[-1]}"
        executor.set_bad_state_and_fail_all(RuntimeError(message))


def accelerators(pack: Pack) -> list[str]:
    """The GPUs of each slot of a node, as in CUDA_VISIBLE_DEVICES."""
    each = max(1, pack.gpus_per_slot)
    firsts = range(0, pack.slots_per_node * each, each)
    return [",".join(map(str, range(first, first + each))) for first in firsts]


def usable_affinity(affinity: str) -> tuple[str, str]:
    """The CPUs of each slot, or `none` with a sentence if this node lacks one of them.

    A worker that is bound to a CPU that is not there dies at once, again and again.
    """
    ranges = re.findall(r"(\d+)(?:-(\d+))?", affinity) if affinity.startswith("list:") else []
    cpus = {cpu for low, high in ranges for cpu in range(int(low), int(high or low) + 1)}
    if missing := cpus - os.sched_getaffinity(0):
        words = f"{host()} has no CPU {min(missing)}, so that slots are not bound to {affinity}"
        return "none", words
    return affinity, ""


def address(pack: Pack) -> str:
    """Address at which other nodes reach this one; a single node listens to itself only."""
    if pack.nodes == 1 or pack.launcher == "fork":
        return "127.0.0.1"
    from parsl.addresses import address_by_interface

    for interface in pack.interfaces:
        try:
            return str(address_by_interface(interface))
        except OSError:
            continue
    return _address_by_name()


def _address_by_name() -> str:
    done = processes.run(["hostname", "-I"])
    addresses = done.stdout.split()
    return addresses[0] if addresses else "127.0.0.1"


if __name__ == "__main__":
    main(sys.argv[1])
