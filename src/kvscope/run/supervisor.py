"""Supervises one run: starts the measured process, watches it, and writes `run.json`.

The measured process and the profiler around it may crash or hang. Repeats that were finished before
are kept, the reason is recorded, and other experiments are not affected.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.base.files import follow_umask, make_directory, write_text
from kvscope.base.processes import end_with_parent, exit_on_signals, kill
from kvscope.base.scratch import scratch_directory
from kvscope.engine.devices.platform import platform_of
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.resources import check_memory
from kvscope.run.attempt import keep_whole_repeats, read_session
from kvscope.run.capture import export, profile_command
from kvscope.run.display import Display
from kvscope.run.disturbance import MEASURED_PROCESS, open_proc
from kvscope.run.environment import measured_environment
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, hold_lock
from kvscope.run.placement import gpu_clocks, placement
from kvscope.run.profiler import Nsys, find_nsys
from kvscope.run.progress import PROGRESS_FILE, read_progress
from kvscope.run.provenance import hardware, option_origins, table_origins, versions
from kvscope.run.requirements import require_vllm
from kvscope.tables import attempts, runfile
from kvscope.tables.added import added_tables
from kvscope.tables.attempts import ATTEMPT
from kvscope.tables.runfile import EXPERIMENT_FILE, LOG_FILE
from kvscope.workload import requests

SECONDS_BETWEEN_LOOKS = 0.2
# The profiler is killed if it takes longer after the measurement.
PROFILER_GRACE_S = 120.0
# The run is ended if the measured process makes no progress for this long.
SILENCE_LIMIT_S = 1800.0
# Less free room than this is named as the cause when records cannot be written.
LITTLE_ROOM_BYTES = 1 << 20


@dataclass(frozen=True)
class Profiling:
    """The profiler of a run: what was requested, what is used, and why they differ."""

    requested: str
    nsys: Nsys | None
    reason: str | None = None

    def facts(self) -> dict[str, Any]:
        """The entry of run.json."""
        return {
            "requested": self.requested,
            "used": "nsys" if self.nsys else "none",
            "reason": self.reason,
            "version": self.nsys.version if self.nsys else None,
        }


def choose_profiler(experiment: Experiment) -> Profiling:
    """Select nsys if the experiment requests or allows ('auto') it and it is installed.

    BadInput if it is requested and not installed.
    """
    requested = experiment.profiler.name
    if requested == "none":
        return Profiling(requested, None)
    nsys = find_nsys()
    if nsys is None and requested == "nsys":
        raise BadInput(
            "profiler: 'nsys' is requested but Nsight Systems is not installed; run `make nsys`, "
            "set KVSCOPE_NSYS to its path, or use profiler=auto or profiler=none"
        )
    return Profiling(requested, nsys, None if nsys else "Nsight Systems is not installed")


MeasureFunction = Callable[[Experiment, Path, Profiling], dict[str, Any]]


def run(
    experiment: Experiment,
    directory: Path,
    force: bool = False,
    measure: MeasureFunction | None = None,
) -> dict[str, Any]:
    """Run an experiment in `directory`; returns the contents of run.json.

    A finished run of the same experiment is kept unless `force` is set or a new measurement is
    requested (`attempts.request_again`). The new measurement is made in attempt/ and replaces the
    old one when it is complete; a failed one never replaces a complete one. A second process for
    the same directory waits, and then finds the run finished. `measure` replaces the measured
    process (`measure_apart`), for a run in this process.
    """
    measure = measure or measure_apart
    make_directory(directory)
    with hold_lock(directory, SUPERVISOR_LOCK):
        if not is_wanted(experiment, directory, force):
            return runfile.read_run(directory)
        try:
            attempt = begin(experiment, directory)
            facts = measure(experiment, attempt, choose_profiler(experiment))
        except BadInput as error:
            refuse(experiment, directory, str(error))
            raise
        settle(directory, facts)
    return facts


def is_wanted(experiment: Experiment, directory: Path, force: bool) -> bool:
    """Whether the run in `directory` is to be measured; false of a finished one that is kept.

    The caller holds the supervisor's lock, here and below.
    """
    wait_for_orphan(directory / ATTEMPT)
    attempts.settle(directory)
    complete = runfile.is_complete(directory, experiment.id)
    if complete and not force and not attempts.is_requested(directory):
        print(f"{experiment.id}: finished before; --force measures it again", file=sys.stderr)
        return False
    if complete:
        attempts.request_again(directory)  # so that a failure leaves it to be done again
    return True


def begin(experiment: Experiment, directory: Path) -> Path:
    """Begin an attempt; gives its directory. BadInput if the experiment cannot be run here."""
    attempt = attempts.begin_attempt(directory)
    write_text(attempt / EXPERIMENT_FILE, dump(experiment))
    require_vllm(experiment.device.allocates)
    added_tables()
    requests.check(experiment)
    check_memory(experiment)
    choose_profiler(experiment)
    return attempt


def refuse(experiment: Experiment, directory: Path, reason: str) -> None:
    """End the attempt of an experiment that cannot be run."""
    settle(directory, refusal_facts(experiment, reason))


def settle(directory: Path, facts: dict[str, Any]) -> None:
    """Write the attempt's run.json, and move it into place if it may replace what is there."""
    attempt = directory / ATTEMPT
    runfile.write_run(attempt, facts)
    for name in (runfile.SESSION_FILE, PROGRESS_FILE):
        (attempt / name).unlink(missing_ok=True)
    attempts.settle(directory)


def wait_for_orphan(attempt: Path) -> None:
    """Wait until a measured process whose supervisor was killed has ended itself."""
    if attempt.is_dir():
        with hold_lock(attempt, SESSION_LOCK):
            pass


def refusal_facts(experiment: Experiment, reason: str) -> dict[str, Any]:
    """The contents of run.json for an experiment that could not be started."""
    return {
        "experiment_id": experiment.id,
        "status": runfile.FAILED,
        "reason": reason,
        "versions": versions() | option_origins(experiment),
        "hardware": hardware(),
        "files": {},
    }


def measure_apart(experiment: Experiment, directory: Path, profiling: Profiling) -> dict[str, Any]:
    """Run the measured process, profiled if possible; returns the contents of run.json.

    `directory` is the attempt's and contains experiment.yaml.
    """
    began, began_s, clocks = time.perf_counter(), time.time(), gpu_clocks()
    with hold_lock(directory, SUPERVISOR_LOCK):
        profiling, ending = watch_with_retries(experiment, directory, profiling)
    session = read_session(directory)
    finished, reason = session.pop("finished", False), session.pop("reason", None)
    if session.pop("bad_input", False):
        raise BadInput(reason)
    if not finished:
        reason = ending.reason
        keep_whole_repeats(directory, session)
    session.pop("kernel_events_bytes", None)
    if profiling.nsys and ending.measured:
        complaint = ending.reason or export(
            profiling.nsys, directory, measured_environment(experiment)
        )
        profiling = Profiling(profiling.requested, profiling.nsys, complaint)
    total_s = time.perf_counter() - began
    facts = run_facts(experiment, directory, session, reason, profiling, total_s)
    return facts | {"placement": placement(began_s, clocks)}


def run_facts(
    experiment: Experiment,
    directory: Path,
    session: dict[str, Any],
    reason: str | None,
    profiling: Profiling,
    total_s: float,
) -> dict[str, Any]:
    """The contents of run.json of a measurement that has ended, after so many seconds."""
    follow_umask(directory)
    gpus = session.pop("accelerators", [])
    # Without a session there is no time, and nobody has asked the device.
    source = session.pop("time_source", None) or experiment.device.time_source
    timings_s = session.pop("timings_s", {}) | {"total": total_s}
    files = runfile.file_records(directory)
    return {
        "experiment_id": experiment.id,
        "status": runfile.FAILED if reason else runfile.COMPLETE,
        "reason": reason,
        "time_source": source,
        "profiler": profiling.facts(),
        "versions": versions() | option_origins(experiment) | table_origins(files),
        "hardware": hardware() | {"gpus": gpus},
        "command": sys.argv,
        "timings_s": timings_s,
        **session,
        "files": files,
    }


def watch_with_retries(
    experiment: Experiment, directory: Path, profiling: Profiling
) -> "tuple[Profiling, Ending]":
    """Run the measured process; returns the profiler that was used, and how the process ended.

    If the profiler fails before anything is measured, it is tried once more; then the run is
    repeated without it and the reason is recorded.
    """
    ending = watch(experiment, directory, profiling)
    if profiling.nsys and not ending.measured and not ending.started:
        ending = watch(experiment, directory, profiling)
    if profiling.nsys and not ending.measured and not ending.started:
        profiling = Profiling(profiling.requested, None, f"nsys failed: {ending.reason}")
        ending = watch(experiment, directory, profiling)
    return profiling, ending


@dataclass(frozen=True)
class Ending:
    """How the measured process ended."""

    started: bool  # it came as far as reading the experiment
    measured: bool  # it finished: everything measured is on disk
    reason: str | None  # what went wrong, profiler included; None if nothing


def watch(experiment: Experiment, directory: Path, profiling: Profiling) -> Ending:
    """Start the measured process, show its progress, and wait for its end."""
    with (
        open_proc() as proc,
        (directory / LOG_FILE).open("wb") as log,
        # nsys keeps files of a fixed name in TMPDIR, which belong to the first user.
        scratch_directory() as temporary,
        Display(experiment.id) as display,
    ):
        process = subprocess.Popen(
            _measured_command(experiment, directory, profiling, proc),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=measured_environment(experiment) | {"TMPDIR": str(temporary)},
            start_new_session=True,
            preexec_fn=end_with_parent(),
            pass_fds=proc,
        )
        with kill_on_exit(process):
            complaint = wait(process, directory, display)
    started = (directory / PROGRESS_FILE).exists()
    measured = read_session(directory).get("finished", False)
    if complaint is None and process.returncode != 0 and not measured:
        complaint = f"the measured process {describe_exit(process.returncode, directory)}"
    return Ending(started, measured, complaint)


def _measured_command(
    experiment: Experiment, directory: Path, profiling: Profiling, proc: Sequence[int]
) -> list[str]:
    """The command of the measured process, under the profiler if there is one."""
    command = [sys.executable, "-m", MEASURED_PROCESS, str(directory.absolute())]
    command += [f"--proc=/proc/self/fd/{descriptor}" for descriptor in proc]
    if profiling.nsys is None:
        return command
    trace, traced = directory / "trace", platform_of(experiment).profiler_options
    return profile_command(profiling.nsys, traced, trace, [*command, "--annotate"])


def wait(process: subprocess.Popen[bytes], directory: Path, display: Display) -> str | None:
    """Wait for the process; kill it if it hangs. Returns what hung in one sentence, or None."""
    measured_at = None
    last_sign, last_progress = time.monotonic(), None
    while process.poll() is None:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        now, progress = time.monotonic(), read_progress(directory)
        display.show(*progress)
        if progress != last_progress:
            last_sign, last_progress = now, progress
        if measured_at is None and read_session(directory).get("finished", False):
            measured_at = now
        if measured_at is not None and now - measured_at > PROFILER_GRACE_S:
            kill(process)
            return f"the profiler did not finish within {PROFILER_GRACE_S:.0f} s of the measurement"
        if measured_at is None and now - last_sign > SILENCE_LIMIT_S:
            kill(process)
            return f"no progress for {SILENCE_LIMIT_S:.0f} s"
    return None


@contextmanager
def kill_on_exit(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process and its children if this process is interrupted or terminated."""

    with exit_on_signals():
        try:
            yield
        finally:
            if process.poll() is None:
                kill(process)


def describe_exit(returncode: int, directory: Path) -> str:
    """Describe a return code, for 'the measured process …'."""
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}; see {LOG_FILE}"
    if returncode == os.EX_IOERR:
        free = shutil.disk_usage(directory).free
        why = os.strerror(errno.ENOSPC) if free < LITTLE_ROOM_BYTES else f"see {LOG_FILE}"
        return f"could not write its records to {directory} ({why})"
    return f"ended with exit code {returncode}; see {LOG_FILE}"
