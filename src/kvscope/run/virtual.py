"""Runs on virtual clocks: nothing disturbs them, so each is measured alone, in this process."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.base.files import make_directory
from kvscope.base.statistics import half_width_share
from kvscope.plan.experiment import Experiment
from kvscope.run import lifecycle
from kvscope.run.attempt import read_session
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, hold_lock
from kvscope.run.profiler import Profiling, choose_profiler
from kvscope.run.progress import Progress, Tell, ignore
from kvscope.tables import runfile


def measure(
    experiment: Experiment, directory: Path, force: bool = False, tell: Tell = ignore
) -> dict[str, Any]:
    """Run an experiment in `directory`, unless its finished run is kept; the contents of run.json.

    What vLLM prints is in the run's log; `tell` takes the progress. BadInput if the experiment
    cannot be run.
    """
    make_directory(directory)
    with hold_lock(directory, SUPERVISOR_LOCK):
        if not lifecycle.is_wanted(experiment, directory, force):
            return runfile.read_run(directory)
        try:
            attempt = lifecycle.begin(experiment, directory)
            profiling = choose_profiler(experiment.profiler.name)
            facts = _measured(experiment, attempt, profiling, tell)
        except BadInput as error:
            lifecycle.refuse(experiment, directory, str(error))
            raise
        lifecycle.settle(directory, facts)
    return facts


def _measured(
    experiment: Experiment, attempt: Path, profiling: Profiling, tell: Tell
) -> dict[str, Any]:
    """The contents of run.json of an attempt that is made now."""
    began_s = time.perf_counter()
    with (
        hold_lock(attempt, SUPERVISOR_LOCK),
        hold_lock(attempt, SESSION_LOCK),
        _printing_to(attempt / runfile.LOG_FILE),
    ):
        unsaved = serve_all(attempt, tell)
    session = read_session(attempt)
    reason = unsaved or session.pop("reason", None)
    if session.pop("bad_input", False):
        raise BadInput(reason)
    for key in ("finished", "kernel_events_bytes"):
        session.pop(key, None)
    total_s = time.perf_counter() - began_s
    return lifecycle.run_facts(experiment, attempt, session, reason, profiling, total_s)


def serve_all(attempt: Path, tell: Tell = ignore) -> str | None:
    """Warm up, and measure repeats until the stopping rule ends the run.

    Returns why the records could not be written, None if they were. The attempt has the
    experiment's file; the caller holds its locks.
    """
    from kvscope.engine.marks import Marks
    from kvscope.run import session as of_run  # imports vLLM

    session = of_run.Session.begin(attempt)
    marks, progress, stopping = Marks(), Progress(tell), session.experiment.stopping

    def repeat() -> None:
        with of_run.prepare(session, marks, progress) as engine:
            while not stopping.ends(
                len(session.repeats), half_width_share(session.throughputs), session.measured_s
            ):
                of_run.measure_repeat(session, engine, marks, progress)

    return of_run.conclude(session, repeat)


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Append the output of this process, including its libraries, to a file."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    copies = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, descriptor in enumerate(copies, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
