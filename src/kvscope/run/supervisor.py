"""One run from outside: starts the measured process, watches it, and writes `run.json`.

The measured process may crash or hang, and so may the profiler around it; whatever was measured
before is kept, the reason is written down, and the other experiments are none the wiser.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope import runfile
from kvscope.errors import BadInput
from kvscope.files import read_json, write_text_if_changed
from kvscope.plan.experiment import Experiment, dump
from kvscope.run.capture import export, profile_command
from kvscope.run.display import Display
from kvscope.run.environment import measured_environment
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, locked
from kvscope.run.processes import kill
from kvscope.run.profiler import Nsys, find_nsys
from kvscope.run.progress import PROGRESS_FILE, read_progress
from kvscope.run.provenance import hardware, policy_origins, versions
from kvscope.run.requirements import require_vllm
from kvscope.runfile import SPOOL
from kvscope.workload import requests

LOG_FILE = "log.txt"
SECONDS_BETWEEN_LOOKS = 0.2
# The profiler may take this long after the measurement before it is given up.
PROFILER_GRACE_S = 120.0
# Without a sign of life from the measured process for this long, the run is given up.
SILENCE_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Profiling:
    """The profiler of a run: what was asked for, what is used, and why they differ."""

    requested: str
    nsys: Nsys | None
    reason: str | None = None

    def described(self) -> dict[str, Any]:
        """As run.json has it."""
        return {
            "requested": self.requested,
            "used": "nsys" if self.nsys else "none",
            "reason": self.reason,
            "version": self.nsys.version if self.nsys else None,
        }


def choose_profiler(experiment: Experiment) -> Profiling:
    """nsys if it is asked for or may be used ('auto') and is here."""
    requested = experiment.profiler.name
    if requested == "none":
        return Profiling(requested, None)
    nsys = find_nsys()
    if nsys is None and requested == "nsys":
        raise BadInput(
            "profiler: 'nsys' is asked for but Nsight Systems is not here; run `make nsys`, set "
            "KVSCOPE_NSYS to its path, or take profiler=auto or profiler=none"
        )
    return Profiling(requested, nsys, None if nsys else "Nsight Systems is not here")


def run(experiment: Experiment, directory: Path, force: bool = False) -> dict[str, Any]:
    """Run an experiment into `directory` and return what run.json says.

    A finished run of the same experiment is kept as it is unless `force`. Two processes never
    run into one directory at once: the second waits and then finds the run finished.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, SUPERVISOR_LOCK), locked(directory, SESSION_LOCK) as session_lock:
        if not force and runfile.is_complete(directory, experiment.id):
            print(f"{experiment.id}: finished before; --force measures it again", file=sys.stderr)
            return runfile.read_run(directory)
        session_lock.release()  # the measured process takes it
        clear(directory)
        write_text_if_changed(directory / "experiment.yaml", dump(experiment))
        try:
            require_vllm()
            requests.check(experiment)
            facts = attempt(experiment, directory, choose_profiler(experiment))
        except BadInput as error:
            runfile.write_run(directory, refused(experiment, str(error)))
            raise
        runfile.write_run(directory, facts)
    return facts


def refused(experiment: Experiment, reason: str) -> dict[str, Any]:
    """The contents of run.json for an experiment that could not even be started here."""
    return {
        "experiment_id": experiment.id,
        "status": runfile.FAILED,
        "reason": reason,
        "versions": versions() | policy_origins(experiment),
        "hardware": hardware(),
        "files": {},
    }


def clear(directory: Path) -> None:
    """Remove what an earlier run left, so that nothing old is taken for new."""
    names = [runfile.RUN_FILE, runfile.SESSION_FILE, PROGRESS_FILE, SPOOL, *runfile.RECORDED_FILES]
    for name in names:
        if name != "experiment.yaml":
            (directory / name).unlink(missing_ok=True)


def attempt(experiment: Experiment, directory: Path, profiling: Profiling) -> dict[str, Any]:
    """Run the measured process, under the profiler if there is one; the contents of run.json.

    A profiler that fails before anything is measured costs one retry with it, then it is left
    out and the reason is kept.
    """
    began = time.perf_counter()
    ending = watch(experiment, directory, profiling)
    if profiling.nsys and not ending.measured and not ending.started:
        ending = watch(experiment, directory, profiling)
    if profiling.nsys and not ending.measured and not ending.started:
        profiling = Profiling(profiling.requested, None, f"nsys failed: {ending.reason}")
        ending = watch(experiment, directory, profiling)
    session = read_session(directory)
    finished, reason = session.pop("finished", False), session.pop("reason", None)
    if session.pop("bad_input", False):
        raise BadInput(reason)
    if not finished:
        reason = ending.reason
    if profiling.nsys and ending.measured:
        complaint = ending.reason or export(
            profiling.nsys, directory, measured_environment(experiment)
        )
        profiling = Profiling(profiling.requested, profiling.nsys, complaint)
    (directory / runfile.SESSION_FILE).unlink(missing_ok=True)
    (directory / PROGRESS_FILE).unlink(missing_ok=True)
    gpus = session.pop("accelerators", [])
    timings_s = session.pop("timings_s", {}) | {"total": time.perf_counter() - began}
    return {
        "experiment_id": experiment.id,
        "status": runfile.FAILED if reason else runfile.COMPLETE,
        "reason": reason,
        "time_source": session.pop("time_source", "measured"),
        "profiler": profiling.described(),
        "versions": versions() | policy_origins(experiment),
        "hardware": hardware() | {"gpus": gpus},
        "command": sys.argv,
        "timings_s": timings_s,
        **session,
        "files": runfile.recorded_files(directory),
    }


@dataclass(frozen=True)
class Ending:
    """How the measured process ended."""

    started: bool  # it came as far as reading the experiment
    measured: bool  # it finished: everything measured is on disk
    reason: str | None  # what went wrong, profiler included; None if nothing


def watch(experiment: Experiment, directory: Path, profiling: Profiling) -> Ending:
    """Start the measured process, show its progress, and see it to its end."""
    command = [sys.executable, "-m", "kvscope.run.session", str(directory)]
    if profiling.nsys:
        trace = directory / "trace"
        command = profile_command(
            profiling.nsys, experiment.device.name, trace, [*command, "--annotate"]
        )
    with (
        (directory / LOG_FILE).open("wb") as log,
        # nsys keeps files of a fixed name in TMPDIR, which belong to whoever came first.
        tempfile.TemporaryDirectory(prefix="kvscope-") as temporary,
        Display(experiment.id) as display,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=measured_environment(experiment) | {"TMPDIR": temporary},
            start_new_session=True,
        )
        with ended_with_us(process):
            complaint = wait(process, directory, display)
    started = (directory / PROGRESS_FILE).exists()
    measured = read_session(directory).get("finished", False)
    if complaint is None and process.returncode != 0 and not measured:
        complaint = f"the measured process {how_it_ended(process.returncode)}; see {LOG_FILE}"
    return Ending(started, measured, complaint)


def read_session(directory: Path) -> dict[str, Any]:
    """What the measured process last told; empty before it tells anything."""
    path = directory / runfile.SESSION_FILE
    return read_json(path) if path.exists() else {}


def wait(process: subprocess.Popen[bytes], directory: Path, display: Display) -> str | None:
    """Wait for the process; kill it if it hangs, and say what hung."""
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
def ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process and its children if this one is interrupted or told to stop."""

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        if process.poll() is None:
            kill(process)


def how_it_ended(returncode: int) -> str:
    """A return code in words."""
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"
