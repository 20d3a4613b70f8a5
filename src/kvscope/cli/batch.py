"""Runs experiments from settings to records, and optionally to tables and metrics.

Measured experiments are a campaign (`run.campaign`), also a single experiment. Experiments on
virtual clocks run one after another in a fork of this process, which imports vLLM once for all of
them. An experiment that fails keeps its log and reason, and the others go on.
"""

import gc
import json
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TextIO

from kvscope.base import layout, processes
from kvscope.base.errors import EXIT_DONE, EXIT_FAILED, BadInput, KvscopeError
from kvscope.engine.devices.platform import platform_of
from kvscope.plan import batches
from kvscope.plan.experiment import Experiment
from kvscope.run.display import Line
from kvscope.run.environment import measured_environment
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.tables import attempts, runfile

Failures = dict[str, KvscopeError | None]
"""The error for which an experiment has no complete run or tables, or None, by its id."""

Outcome = tuple["Job", float, KvscopeError | None]
"""A job, its seconds, and the error for which it has no complete run or tables, or None."""

Ended = Callable[[int, "Job", float, KvscopeError | None], None]
"""Takes the number of jobs that have ended, and the outcome of the last."""

TABLES_LOST = "the process that made its tables was killed; run this again, its records are kept"

FREEZE = gc.freeze  # kept here, since vLLM's own calls of it later do nothing


@dataclass(frozen=True)
class Job:
    """An experiment, the directory of its run, and whether a finished run is measured again.

    `tables` says whether it is collected and analysed, too.
    """

    experiment: Experiment
    directory: Path
    force: bool = False
    tables: bool = False


def run_alone(jobs: Sequence[Job], out: TextIO) -> int:
    """Run the jobs with a line of progress on `out`; the exit code."""
    with Line(out) as line:
        return run_all(jobs, line)


def run_all(jobs: Sequence[Job], line: Line, compare: str | None = None) -> int:
    """Run the jobs, with a line or a reason of failure for each; returns the exit code.

    `compare` is the key whose comparisons end the rounds of measured ones.
    """

    def tell(number: int, job: Job, seconds: float, error: KvscopeError | None) -> None:
        reason = None if error is None else str(error)
        words = batches.line(number, len(jobs), job.experiment.id, seconds, reason)
        line.note(words) if error is None else line.say(words)

    failures = run(jobs, line, compare, tell)
    failed = [id_ for id_, error in failures.items() if error is not None]
    if failed:
        line.say(f"{len(failed)} of {len(jobs)} failed: {', '.join(failed)}")
    return EXIT_FAILED if failed else EXIT_DONE


def run(
    jobs: Sequence[Job], line: Line, compare: str | None = None, ended: Ended | None = None
) -> Failures:
    """Run the jobs, those on virtual clocks first; `line` shows the progress.

    `ended` is called when an experiment has its records, and its tables if they are wanted.
    """
    virtual = [job for job in jobs if not job.experiment.device.allocates]
    measured = [job for job in jobs if job.experiment.device.allocates]
    failures: Failures = {}
    for job, seconds, error in chain(
        _run_virtual(virtual, line), _run_measured(measured, line, compare)
    ):
        failures[job.experiment.id] = error
        if ended is not None:
            ended(len(failures), job, seconds, error)
    return failures


def _run_virtual(jobs: Sequence[Job], line: Line) -> Iterator[Outcome]:
    began_s = time.perf_counter()
    for number, (job, error) in enumerate(_each_in_fork(jobs), 1):
        now_s = time.perf_counter()
        yield job, now_s - began_s, error
        if len(jobs) > 1:
            line.show(f"{number} of {len(jobs)} experiments")
        began_s = now_s


def _each_in_fork(jobs: Sequence[Job]) -> Iterator[tuple[Job, KvscopeError | None]]:
    """Each job with its error, if any; jobs that need other variables have other forks."""
    alike: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        alike[json.dumps(platform_of(job.experiment).environment(), sort_keys=True)].append(job)
    for pending in alike.values():
        yield from _each_in_fork_of(pending)


def _each_in_fork_of(pending: list[Job]) -> Iterator[tuple[Job, KvscopeError | None]]:
    """Each job of one environment with its error, if any; a lost fork costs only its job."""
    while pending:
        with processes.forks(1) as pool:
            pool.submit(prepare, measured_environment(pending[0].experiment)).result()
            while pending:
                job = pending.pop(0)
                try:
                    yield job, pool.submit(run_one, job).result()
                except BrokenProcessPool:
                    log = attempts.log_path(job.directory)
                    yield job, KvscopeError(f"the process that ran it was killed (log: {log})")
                    break


def prepare(environment: dict[str, str]) -> None:
    """Prepare this process for running experiments; vLLM must not be imported yet."""
    os.environ.clear()
    os.environ.update(environment)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [entry for entry in path if entry and entry not in sys.path]
    gc.disable()  # all that a run records is kept


def run_one(job: Job) -> KvscopeError | None:
    """Run, collect and analyse an experiment on a virtual clock; returns the error or None."""
    from kvscope.run import virtual
    from kvscope.run.block import Told

    try:
        # The output of this process during the run goes to the run's log.
        with os.fdopen(os.dup(2), "w") as out, Line(out, patient=True) as line:
            facts = virtual.measure(job.experiment, job.directory, job.force, Told(line.show))
        if facts["status"] != runfile.COMPLETE:
            return KvscopeError(f"{facts['reason']} (log: {attempts.log_path(job.directory)})")
        if job.tables:
            make_tables(job.directory)
    except KvscopeError as error:
        return _with_words(error, str(error))
    except Exception as error:  # concerns only this experiment: the next ones are run
        traceback.print_exc()
        return KvscopeError(f"{type(error).__name__}: {error}".splitlines()[0])
    if not gc.get_freeze_count():  # the imports of the first run are kept
        gc.collect()
        FREEZE()
    return None


def _run_measured(jobs: Sequence[Job], line: Line, compare: str | None) -> Iterator[Outcome]:
    from kvscope.run import campaign

    if not jobs:
        return
    requested = [campaign.Wanted(job.experiment, job.directory, job.force) for job in jobs]
    failures = campaign.measure(requested, line.show, compare)
    measured = [job for job in jobs if failures[job.experiment.id] is None]
    failures |= _make_all_tables([job for job in measured if job.tables], line)
    for job in jobs:
        error = failures[job.experiment.id]
        if error is not None and job not in measured:
            log = attempts.log_path(job.directory)
            error = _with_words(error, f"{error} (log: {log})") if log.exists() else error
        yield job, 0.0 if error else _measured_s(job.directory), error


def _make_all_tables(jobs: Sequence[Job], line: Line) -> Failures:
    """Collect and analyse runs, at most one on each core."""
    # Imported here, they are in all processes.
    import kvscope.collect.collector
    import kvscope.metrics.experiment  # noqa: F401

    failures: Failures = {}
    lost: list[Job] = []
    jobs = sorted(jobs, key=lambda job: -_size_bytes(job.directory))  # the longest first
    cores = len(os.sched_getaffinity(0))
    with processes.forks(max(1, min(cores, len(jobs)))) as pool:
        futures = [pool.submit(_tables_error, job.directory) for job in jobs]
        for number, (job, future) in enumerate(zip(jobs, futures, strict=True), 1):
            try:
                failures[job.experiment.id] = future.result()
            except BrokenProcessPool:
                lost.append(job)
                failures[job.experiment.id] = KvscopeError(TABLES_LOST)
            line.show(f"tables and metrics, {number} of {len(jobs)}")
    if len(jobs) > 1:  # one of them may have ended the others
        for job in lost:
            failures |= _make_all_tables([job], line)
    return failures


def _size_bytes(directory: Path) -> int:
    """Bytes of all files in a run's directory."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _tables_error(directory: Path) -> KvscopeError | None:
    """Why a run has no tables or metrics; None if it has."""
    try:
        make_tables(directory, perfetto=True)
    except KvscopeError as error:
        return _with_words(error, str(error))
    return None


def _with_words(error: KvscopeError, words: str) -> KvscopeError:
    """An error of the same exit code with other words, which can be sent to another process."""
    return BadInput(words) if isinstance(error, BadInput) else KvscopeError(words)


def _measured_s(directory: Path) -> float:
    """Seconds of all repeats of a run."""
    repeats = runfile.read_record(directory).clock.repeats
    return sum(entry.duration_s for entry in repeats)


def make_tables(directory: Path, perfetto: bool = False) -> None:
    """Collect and analyse a run, unless this was done for the present measurement.

    A batch whose workflow was killed may still do so: the run's lock is held meanwhile.
    """
    from kvscope.collect.collector import collect_run
    from kvscope.metrics.experiment import analyse
    from kvscope.tables import accounts

    tables = layout.tables_directory(directory)
    with hold_lock(directory, SUPERVISOR_LOCK):
        if accounts.is_current(tables, accounts.ANALYSED, directory):
            return
        collect_run(directory, tables, perfetto=perfetto)
        analyse(directory, tables)
