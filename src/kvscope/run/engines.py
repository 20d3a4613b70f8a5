"""A campaign's side of its zygote and of the engines that are forked from it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Self

import psutil

from kvscope.base.errors import KvscopeError
from kvscope.base.processes import end_with_parent, kill
from kvscope.base.reading import last_line
from kvscope.run.link import Link, Lost, Silent
from kvscope.run.progress import Tell, ignore
from kvscope.tables.runfile import LOG_FILE

# A zygote that dies again and again is not started for ever.
MOST_ZYGOTES = 3
END_LIMIT_S = 30.0
# An engine that says nothing for this long hangs, and is killed.
SILENCE_LIMIT_S = 1800.0
# A zygote that has not imported vLLM after so long is killed, too.
START_LIMIT_S = 900.0


class Zygote:
    """The process that imports vLLM once and forks engines, in a `with` block.

    It is started when it is needed, and again if it is killed. `modules` are those of the engines'
    device (`Platform.worker_modules`). `prefix` is a command that runs it, such as a profiler's;
    engines have NVTX ranges if there is one.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        log: Path,
        prefix: Sequence[str] = (),
    ) -> None:
        self.prefix, self.modules = tuple(prefix), tuple(modules)
        self._environment, self._log = environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._forking = Lock()
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over = True
        self.end(END_LIMIT_S if kind is None else 0.0)

    @property
    def pid(self) -> int | None:
        """The id of its process, or of the command that runs it; None if it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, unless it runs, and wait until it has imported vLLM.

        KvscopeError if it ends before, or its `with` block is over.
        """
        if self._is_over:
            raise KvscopeError("the process that forks engines is no longer needed")
        try:
            self._link = self._link or self._start()
        except Silent:
            self.end()
            raise KvscopeError(f"vLLM was not imported within {START_LIMIT_S:.0f} s") from None
        except Lost:
            self.end()
            raise KvscopeError(f"the process that imports vLLM ended{self._last_words()}") from None

    def fork(self, directory: Path, threads: int) -> "ParkedEngine":
        """Fork the measured process of the attempt in `directory`; KvscopeError if that fails.

        Of several threads, one at a time does.
        """
        with self._forking:
            for _ in range(MOST_ZYGOTES):
                self.start()
                try:
                    return self._fork(directory, threads)
                except Lost:
                    self.end()
        raise KvscopeError(f"the process that forks engines was lost{self._last_words()}")

    def _fork(self, directory: Path, threads: int) -> "ParkedEngine":
        assert self._link
        ours, theirs = Link.pair()
        words = {"directory": str(directory.absolute()), "threads": threads}
        try:
            with (directory / LOG_FILE).open("ab") as log:
                descriptors = theirs.fileno(), log.fileno()
                self._link.send(descriptors, annotate=bool(self.prefix), **words)
            pid = self._link.receive()[0]["pid"]
        except Lost:
            ours.close()
            raise
        finally:
            theirs.close()
        # Below a prefix, the id may be one of another process namespace.
        return ParkedEngine(directory, ours, None if self.prefix else pid)

    def _start(self) -> Link:
        ours, theirs = Link.pair()
        command = [sys.executable, "-m", "kvscope.run.zygote", str(theirs.fileno())]
        command += self.modules
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent(),
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        ours.receive(START_LIMIT_S)
        return ours

    def _last_words(self) -> str:
        """The last line of its log, after a colon; empty without any."""
        line = last_line(self._log.read_text(encoding="utf-8", errors="replace"))
        return f": {line}" if line else ""

    def end(self, limit_s: float = END_LIMIT_S) -> None:
        """End the process, and kill it after so long; its forks go on, unless it has a prefix."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            try:  # without a link it is still importing
                self._process.wait(0 if self._link is None else limit_s)
            except subprocess.TimeoutExpired:
                kill(self._process)
        self._link = self._process = None


class ParkedEngine:
    """An engine that serves a repeat when it is asked, in a process of its own."""

    def __init__(self, directory: Path, link: Link, pid: int | None) -> None:
        self.directory, self.pid = directory, pid
        self._link = link

    def await_ready(self, tell: Tell = ignore) -> int:
        """Wait until the engine is warm; how many repeats its attempt has. Lost if it ended."""
        return int(self._expect("ready", tell)["repeats"])

    def serve(self, measured_in: dict[str, Any], tell: Tell = ignore) -> int:
        """Measure a repeat; how many there are then. Lost if the engine ended.

        `measured_in` is added to its entry in run.json.
        """
        self._link.send(serve=measured_in)
        return int(self._expect("served", tell)["served"])

    def end(self) -> None:
        """Let the engine finish its records and wait for its end; Lost if it had ended before.

        Its memory is free then, for the next engine of a sitting.
        """
        self._link.send(end=True)
        self._expect("ended")
        with suppress(Lost, psutil.Error):
            if self.pid is None:
                self._link.receive(END_LIMIT_S)
            else:
                psutil.Process(self.pid).wait(END_LIMIT_S)

    def close(self) -> None:
        """Forget the engine, which ends when its repeat under way is over."""
        self._link.close()

    def kill(self) -> None:
        """Kill the engine and all that it started; one whose id is not known loses its link."""
        if self.pid is None:
            self.close()
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # it leads its session

    def _expect(self, word: str, tell: Tell = ignore) -> dict[str, Any]:
        while True:
            try:
                message, _ = self._link.receive(SILENCE_LIMIT_S)
            except Silent:
                self.kill()
                raise Lost(f"the engine made no progress for {SILENCE_LIMIT_S:.0f} s") from None
            if word in message:
                return message
            if (
                "share" not in message
            ):  # it failed: session.json has the reason, or cannot be written
                raise Lost(message.get("ended"))
            tell(message["phase"], message["share"])
