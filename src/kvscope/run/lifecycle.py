"""The life of an attempt: whether a run is wanted, its beginning, and its end in `run.json`."""

import sys
from pathlib import Path
from typing import Any

from kvscope.base.files import follow_umask, write_text
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.resources import check_memory
from kvscope.run.locks import SESSION_LOCK, hold_lock
from kvscope.run.profiler import Profiling, choose_profiler
from kvscope.run.provenance import hardware, option_origins, table_origins, versions
from kvscope.run.requirements import require_vllm
from kvscope.tables import attempts, runfile
from kvscope.tables.added import added_tables
from kvscope.tables.attempts import ATTEMPT
from kvscope.tables.runfile import EXPERIMENT_FILE
from kvscope.workload import requests


def is_wanted(experiment: Experiment, directory: Path, force: bool) -> bool:
    """Whether the run in `directory` is to be measured; a finished run may be kept.

    The caller holds the supervisor's lock, here and below.
    """
    wait_for_orphan(directory / ATTEMPT)
    attempts.settle(directory)
    complete = runfile.is_complete(directory, experiment.id)
    if complete and not force and not attempts.is_requested(directory):
        print(f"{experiment.id}: finished before; --force measures it again", file=sys.stderr)
        return False
    if complete:
        attempts.request_again(directory)  # so that a failure leaves the request in place
    return True


def begin(experiment: Experiment, directory: Path) -> Path:
    """Begin an attempt; gives its directory. BadInput if the experiment cannot be run here."""
    attempt = attempts.begin_attempt(directory)
    write_text(attempt / EXPERIMENT_FILE, dump(experiment))
    require_vllm(experiment.device.allocates)
    added_tables()
    requests.check(experiment)
    check_memory(experiment)
    choose_profiler(experiment.profiler.name)
    return attempt


def refuse(experiment: Experiment, directory: Path, reason: str) -> None:
    """End the attempt of an experiment that cannot be run."""
    settle(directory, refusal_facts(experiment, reason))


def settle(directory: Path, facts: dict[str, Any]) -> None:
    """Write the attempt's run.json, and move it into place unless it would replace a complete
    run."""
    attempt = directory / ATTEMPT
    runfile.write_run(attempt, facts)
    (attempt / runfile.SESSION_FILE).unlink(missing_ok=True)
    attempts.settle(directory)


def wait_for_orphan(attempt: Path) -> None:
    """Wait until a measured process whose campaign was killed has ended itself."""
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
    # Without a session no time was measured, and the device was not asked.
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
