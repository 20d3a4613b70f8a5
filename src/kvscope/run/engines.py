"""A campaign's side of its zygote and of the engines that are forked from it."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvscope.errors import KvscopeError
from kvscope.plan.experiment import Experiment
from kvscope.run.environment import measured_environment
from kvscope.run.link import Link, Lost, Silent
from kvscope.run.processes import kill
from kvscope.runfile import LOG_FILE

# A zygote that dies again and again is not started for ever.
MOST_ZYGOTES = 3
END_LIMIT_S = 30.0
# An engine that says nothing for this long hangs, and is killed.
SILENCE_LIMIT_S = 1800.0


class Zygote:
    """The process that imports vLLM once and forks engines; started again if it is killed."""

    def __init__(self, experiment: Experiment, log: Path) -> None:
        self._environment, self._log = measured_environment(experiment), log
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None

    def fork(self, directory: Path, threads: int) -> "ParkedEngine":
        """Fork the measured process of the attempt in `directory`; KvscopeError if that fails."""
        for _ in range(MOST_ZYGOTES):
            try:
                return self._fork(directory, threads)
            except Lost:
                self.end()
        raise KvscopeError(f"the process that imports vLLM ended; see {self._log}")

    def _fork(self, directory: Path, threads: int) -> "ParkedEngine":
        link = self._link or self._start()
        ours, theirs = Link.pair()
        try:
            with (directory / LOG_FILE).open("ab") as log:
                descriptors = theirs.fileno(), log.fileno()
                link.send(descriptors, directory=str(directory.absolute()), threads=threads)
            pid = link.receive()[0]["pid"]
        except Lost:
            ours.close()
            raise
        finally:
            theirs.close()
        return ParkedEngine(directory, ours, pid)

    def _start(self) -> Link:
        ours, theirs = Link.pair()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvscope.run.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        self._link = ours
        ours.receive()
        return ours

    def end(self) -> None:
        """End the process; its forks go on."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            try:
                self._process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                kill(self._process)
        self._link = self._process = None


class ParkedEngine:
    """An engine that serves a repeat when it is asked, in a process of its own."""

    def __init__(self, directory: Path, link: Link, pid: int) -> None:
        self.directory, self.pid = directory, pid
        self._link = link

    def await_ready(self) -> int:
        """Wait until the engine is warm; how many repeats its attempt has. Lost if it ended."""
        return int(self._expect("ready")["repeats"])

    def serve(self, measured_in: dict[str, Any]) -> int:
        """Measure a repeat in this round; how many there are then. Lost if the engine ended."""
        self._link.send(serve=measured_in)
        return int(self._expect("served")["served"])

    def end(self) -> None:
        """Let the engine finish its records and wait for its end; Lost if it had ended before."""
        self._link.send(end=True)
        self._expect("ended")

    def close(self) -> None:
        """Forget the engine, which ends, if it has not, when its repeat under way is over."""
        self._link.close()

    def kill(self) -> None:
        """Kill the engine and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # it leads its session

    def _expect(self, word: str) -> dict[str, Any]:
        try:
            message, _ = self._link.receive(SILENCE_LIMIT_S)
        except Silent:
            self.kill()
            raise
        if word not in message:
            raise Lost  # it failed: session.json has the reason
        return message
