"""Checks of many runs and studies: on all cores, with an estimate of the time that they take."""

import gc
import io
import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from kvscope.base import processes
from kvscope.base.errors import KvscopeError
from kvscope.base.quantities import plural, rough_duration
from kvscope.base.scratch import scratch_directory
from kvscope.report.check_run import CheckResult, inspect_run
from kvscope.report.check_study import study_complaints

# Seconds of a core, fitted to the modeled study of the paper. Of other machines, and of runs of
# another kind, the estimate is wrong at first: what has been checked corrects it.
RUN_S, RUN_S_PER_BYTE = 0.6, 1.5e-6
STUDY_S, STUDY_S_PER_RUN = 2.0, 0.08
BELIEVED_S = 20.0  # so many seconds of work correct the estimate by half
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class RunCheck:
    """The check of a run's directory; `quick` as for `inspect_run`."""

    run: Path
    quick: bool = False

    def expected_s(self) -> float:
        """Seconds of a core that it takes, roughly."""
        if self.quick:
            return 0.5 * RUN_S
        files = self.run.iterdir() if self.run.is_dir() else ()
        return RUN_S + RUN_S_PER_BYTE * sum(path.stat().st_size for path in files if path.is_file())

    def make(self) -> CheckResult:
        """The faults of the run, and the verdicts of its oracles."""
        return inspect_run(self.run, self.quick)


@dataclass(frozen=True)
class StudyCheck:
    """The check of a study's own files, of so many runs."""

    study: Path
    config_dir: Path
    runs: int

    def expected_s(self) -> float:
        """Seconds of a core that it takes, roughly."""
        return STUDY_S + STUDY_S_PER_RUN * self.runs

    def make(self) -> CheckResult:
        """The faults of the study's files."""
        return CheckResult(list(study_complaints(self.study, self.config_dir)), [])


Check = RunCheck | StudyCheck


class Outlook:
    """Expected time of checks, corrected by the time that those which ended took."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.expected_s = [check.expected_s() for check in checks]
        self.workers = min(len(os.sched_getaffinity(0)), len(checks))
        self._ended_s = 0.0

    def end(self, check: int) -> None:
        """Count a check, by its place, among those that have ended."""
        self._ended_s += self.expected_s[check]

    def left_s(self, elapsed_s: float = 0.0) -> float:
        """Seconds that are left after so many."""
        slowness = (elapsed_s * self.workers + BELIEVED_S) / (self._ended_s + BELIEVED_S)
        return slowness * (sum(self.expected_s) - self._ended_s) / self.workers


def announcement(checks: Sequence[Check]) -> str:
    """Number and expected time of checks in words: '438 runs on 2 cores: about 4 min'."""
    outlook = Outlook(checks)
    runs = plural(sum(isinstance(check, RunCheck) for check in checks), "run")
    return f"checking {runs} on {plural(outlook.workers, 'core')}: {_about(outlook.left_s())}"


def check_all(checks: Sequence[Check], show: Callable[[str], None]) -> Generator[CheckResult]:
    """The results of the checks in their order; checks run side by side, one on each core.

    Those of studies begin first, since each takes long. `show` gets a sentence now and then: how
    many have ended, and the time left. KvscopeError if a check raises it, or if its process is
    killed.
    """
    outlook, began_s = Outlook(checks), time.monotonic()
    with scratch_directory() as temporary, processes.forks(outlook.workers) as pool:
        order = sorted(range(len(checks)), key=lambda place: isinstance(checks[place], RunCheck))
        with processes.signals_later():
            places = {pool.submit(_make, checks[place], temporary): place for place in order}
        futures, pending = sorted(places, key=places.__getitem__), {*places}
        for future in futures:
            while not future.done():
                with processes.signals_later():
                    ended, pending = wait(pending, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                for check in ended:
                    outlook.end(places[check])
                if pending:
                    left_s = outlook.left_s(time.monotonic() - began_s)
                    done = f"{len(futures) - len(pending)} of {len(futures)} checked"
                    show(f"{done}, {_about(left_s)} left")
            yield _result(future)


def _make(check: Check, temporary: Path) -> CheckResult:
    """The result of a check in a fork, whose files are below `temporary`.

    Garbage is collected after it: Python would do so often meanwhile, for hardly any. What a stage
    shows of its progress would stand in the line that shows all.
    """
    tempfile.tempdir = str(temporary)
    gc.disable()
    gc.freeze()  # what is there before is there for good
    with redirect_stderr(io.StringIO()):
        result = check.make()
    gc.collect()
    return result


def _result(future: Future[CheckResult]) -> CheckResult:
    try:
        return future.result()
    except BrokenProcessPool:
        raise KvscopeError(
            "a process of the check was killed, perhaps since memory ran out; on one core it takes "
            "less of it: `taskset --cpu-list 0 kvscope check …`"
        ) from None


def _about(seconds: float) -> str:
    return f"about {rough_duration(seconds)}"
