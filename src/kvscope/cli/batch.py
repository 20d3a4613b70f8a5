"""Many experiments at once: run, collected and analysed.

Measured ones are a campaign (`run.campaign`); modeled ones share a process, one after another. It
is run as `python -m kvscope.cli.batch`; its standard input has a line of JSON for each experiment.
What takes the time of a short modeled run is the start of Python and vLLM: here all share it. An
experiment that fails keeps its log and reason, and the others go on.
"""

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any, TextIO

from kvscope.base import layout, processes
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.plan import batches
from kvscope.plan.experiment import Experiment, parse
from kvscope.run import supervisor
from kvscope.run.attempt import read_session
from kvscope.run.display import Line
from kvscope.run.environment import measured_environment
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, hold_lock
from kvscope.run.supervisor import Profiling
from kvscope.tables import attempts, runfile

FAILED = 1
FREEZE = gc.freeze  # before vLLM's calls of it have no effect


@dataclass(frozen=True)
class Job:
    """One experiment, where its run goes, and whether it is measured again if it is finished."""

    experiment: Experiment
    directory: Path
    force: bool = False
    tables: bool = False  # whether it is collected and analysed, too

    def to_json(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(
            {
                "experiment": self.experiment.to_dict(),
                "directory": str(self.directory),
                "force": self.force,
                "tables": self.tables,
            }
        )

    @classmethod
    def of_json(cls, line: str) -> "Job":
        """The job that `to_json` wrote as this line."""
        value = json.loads(line)
        experiment = parse(value["experiment"], lambda key: "standard input")
        return cls(experiment, Path(value["directory"]), value["force"], value["tables"])


def run_alone(jobs: Sequence[Job], out: TextIO) -> int:
    """Run the jobs as `run_modeled` does, with a line of progress on `out`; the exit code."""
    with Line(out) as line:
        return run_modeled(jobs, line)


def run_modeled(jobs: Sequence[Job], line: Line) -> int:
    """Run the jobs in one process beside this one; its exit code. `line` shows how far it is."""
    command = [sys.executable, "-m", "kvscope.cli.batch"]
    environment = measured_environment(jobs[0].experiment)
    with processes.running(
        command, stdin=PIPE, stderr=PIPE, text=True, env=environment, errors="replace"
    ) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.writelines(f"{job.to_json()}\n" for job in jobs)
        process.stdin.close()
        for words in map(str.rstrip, process.stderr):
            ended = batches.LINE.match(words)
            if ended and ended["reason"] is None:
                line.note(words)
                line.show(f"{words.partition(']')[0][1:].replace('/', ' of ')} experiments")
            else:
                line.say(words)
    return int(process.returncode)


def run_measured(jobs: Sequence[Job], compare: str | None, line: Line) -> int:
    """Measure the jobs together, and make their tables; 0 if all are complete.

    `compare` is the key whose comparisons end the rounds; `line` shows how far they are.
    """
    from kvscope.run import campaign

    wanted = [campaign.Wanted(job.experiment, job.directory, job.force) for job in jobs]
    reasons = campaign.measure(wanted, line.show, compare)
    reasons |= _make_all_tables(
        [j for j in jobs if j.tables and not reasons[j.experiment.id]], line
    )
    for number, (id_, reason) in enumerate(reasons.items(), 1):
        directory = jobs[number - 1].directory
        if reason is None:
            line.note(batches.line(number, len(jobs), id_, _measured_s(directory), None))
        else:
            reason = f"{reason} (log: {attempts.log_path(directory)})"
            line.say(batches.line(number, len(jobs), id_, 0.0, reason))
    failed = [id_ for id_, reason in reasons.items() if reason is not None]
    if failed:
        line.say(f"{len(failed)} of {len(jobs)} failed: {', '.join(failed)}")
    return FAILED if failed else 0


def _make_all_tables(jobs: Sequence[Job], line: Line) -> dict[str, str | None]:
    """Collect and analyse runs, one on each core at a time; by id why one has no tables."""
    # Imported here, they are in all processes.

    found: dict[str, str | None] = {}
    jobs = sorted(jobs, key=lambda job: -_size_bytes(job.directory))  # the longest first
    cores = len(os.sched_getaffinity(0))
    with processes.forks(max(1, min(cores, len(jobs)))) as pool:
        reasons = pool.map(_tables_problem, [job.directory for job in jobs])
        for number, (job, reason) in enumerate(zip(jobs, reasons, strict=True), 1):
            line.show(f"tables and metrics, {number} of {len(jobs)}")
            found[job.experiment.id] = reason
    return found


def _size_bytes(directory: Path) -> int:
    """Size and SHA-256 of all files in a run's directory."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _tables_problem(directory: Path) -> str | None:
    """Why a run has no tables or metrics; None if it has."""
    try:
        make_tables(directory, perfetto=True)
    except KvscopeError as error:
        return str(error)
    return None


def _measured_s(directory: Path) -> float:
    """Seconds of all repeats of a run."""
    repeats = runfile.read_record(directory).clock.repeats
    return sum(entry.duration_s for entry in repeats)


def run_each(jobs: Sequence[Job], out: TextIO) -> int:
    """Run the jobs here; 0 if all are complete. `out` gets a line for each, or why it failed."""
    failed: list[str] = []
    for number, job in enumerate(jobs, 1):
        began = time.perf_counter()
        reason = run_one(job)
        took_s = time.perf_counter() - began
        said = batches.line(number, len(jobs), job.experiment.id, took_s, reason)
        print(said, file=out, flush=True)
        if reason is not None:
            failed.append(job.experiment.id)
        if number == 1:  # what it imported is there for good
            gc.collect()
            FREEZE()
    if failed:
        print(f"{len(failed)} of {len(jobs)} failed: {', '.join(failed)}", file=out, flush=True)
    return FAILED if failed else 0


def run_one(job: Job) -> str | None:
    """Run, collect and analyse one experiment; why it failed, None if it did not."""
    try:
        facts = supervisor.run(job.experiment, job.directory, job.force, measure_here)
        if facts["status"] != runfile.COMPLETE:
            return f"{facts['reason']} (log: {attempts.log_path(job.directory)})"
        if job.tables:
            make_tables(job.directory)
    except KvscopeError as error:
        return str(error)
    except Exception as error:  # of this experiment: the next ones are not concerned
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def make_tables(directory: Path, perfetto: bool = False) -> None:
    """Collect and analyse a run, unless that was done of this measurement.

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


def measure_here(experiment: Experiment, directory: Path, profiling: Profiling) -> dict[str, Any]:
    """The contents of run.json of a run made in this process."""
    from kvscope.run import session  # it imports vLLM

    began = time.perf_counter()
    with (
        hold_lock(directory, SUPERVISOR_LOCK),
        hold_lock(directory, SESSION_LOCK),
        (directory / runfile.LOG_FILE).open("w", encoding="utf-8") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        session.main(directory, annotate=False)
    found = read_session(directory)
    reason, finished = found.pop("reason", None), found.pop("finished", False)
    if found.pop("bad_input", False):
        raise BadInput(reason)
    found.pop("kernel_events_bytes", None)
    if not finished:
        reason = reason or "the run did not end"
    total_s = time.perf_counter() - began
    return supervisor.run_facts(experiment, directory, found, reason, profiling, total_s)


def main() -> int:
    """Run what standard input lists."""
    jobs = [Job.of_json(line) for line in sys.stdin if line.strip()]
    gc.disable()  # all that a run records is kept
    return run_each(jobs, sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
