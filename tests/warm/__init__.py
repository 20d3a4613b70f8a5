"""Campaigns without the 15 s that importing vLLM takes: their zygotes are forks of a warm process.

With `Warm.variables` in its environment, a campaign starts `python -m kvscope.run.zygote …` as
ever, and `sitecustomize.py` makes a stand-in of it (`stand_in.py`), which passes its arguments,
environment, directory and streams to the warm process (`server.py`). That forks, and the fork is
the zygote. The stand-in ends as the fork ends; the fork is killed when the stand-in is.
Campaign, locks, files and engine are the real ones.

A process with other variables than the warm one's (those of a profiler), or with another kvscope
(an installed wheel), is no stand-in: it imports vLLM itself.

A run on a virtual clock that `Warm.run` makes is one of a process that makes many, as those of a
study are (`kvscope.cli.batch`): its engine starts in a second. `virtual.py` is that process.

With KVSCOPE_WARM_COMMANDS in the environment, `kvscope` and `snakemake` are forks, too. Signals
are not passed on, except SIGKILL.
"""

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import kvscope
from kvscope.base.errors import BadInput
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run import campaign
from kvscope.run.environment import measured_environment
from kvscope.run.locks import hold_lock
from kvscope.tables import runfile
from kvscope.tables.attempts import ATTEMPT

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# May differ between the warm process and a fork: read when used, or applied by the fork.
FREE = (
    *("PATH", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"),
    *("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "TOY"),
    "CUDA_VISIBLE_DEVICES",  # none is visible to the warm process, too
)


class Warm:
    """The warm process of a test run: started by whichever of its processes asks first.

    It ends when the process `of` ends.
    """

    def __init__(self, directory: Path, of: int) -> None:
        (planned,) = expand(None, [], ROOT / "config").experiments
        self.environment = measured_environment(planned.experiment)
        self.directory, self.address = directory, directory / "socket"
        self.virtual: subprocess.Popen[bytes] | None = None
        directory.mkdir(exist_ok=True)
        with hold_lock(directory, "starting"):
            if not self.address.exists():
                self._start(of)

    def _start(self, of: int) -> None:
        (self.directory / "sitecustomize.py").symlink_to(HERE / "sitecustomize.py")
        fits = {
            "kvscope": os.path.realpath(kvscope.__file__),
            "environment": self.environment,
            "free": FREE,
            "stand_in": str(HERE / "stand_in.py"),
        }
        (self.directory / "fits.json").write_text(json.dumps(fits), encoding="utf-8")
        with (self.directory / "log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", str(self.address), str(of)],
                cwd=ROOT,
                env=self.environment | {"NUMBA_NUM_THREADS": "8"},  # more than any test sets
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not self.address.exists():  # then it listens, and imports vLLM meanwhile
            assert server.poll() is None, (self.directory / "log").read_text()
            time.sleep(0.01)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the environment that make a zygote a stand-in."""
        path = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": f"{self.directory}:{path}" if path else str(self.directory)}

    @property
    def commands(self) -> dict[str, str]:
        """Variables of the environment that make `kvscope` and `snakemake` stand-ins, too."""
        return self.variables | {"KVSCOPE_WARM_COMMANDS": "1"}

    def run(self, experiment: Experiment, directory: Path) -> dict[str, Any]:
        """Run an experiment as `kvscope run` does; the contents of run.json.

        BadInput if it cannot be run.
        """
        if not experiment.device.allocates:
            return self._run_virtual(experiment, directory)
        with mock.patch.dict(os.environ, self.variables):
            wanted = [campaign.Wanted(experiment, directory)]
            (error,) = campaign.measure(wanted, lambda _: None).values()
        if isinstance(error, BadInput):
            raise error
        attempt = directory / ATTEMPT
        return runfile.read_run(attempt if error and attempt.exists() else directory)

    def _fits(self, environment: dict[str, str]) -> bool:
        """Whether the environment differs from the warm process's in what may differ alone."""
        differing = {key for key, _ in environment.items() ^ self.environment.items()}
        return differing <= {*FREE} - {"TOY"}

    def _run_virtual(self, experiment: Experiment, directory: Path) -> dict[str, Any]:
        needs = measured_environment(experiment)
        if not self._fits(needs):
            with self._start_virtual(needs) as process:
                return self._ask(process, experiment, directory)
        if self.virtual is None or self.virtual.poll() is not None:
            self.virtual = self._start_virtual(self.environment)
        return self._ask(self.virtual, experiment, directory)

    def _start_virtual(self, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        with (self.directory / f"virtual-{os.getpid()}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.warm.virtual"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def _ask(
        self, process: "subprocess.Popen[bytes]", experiment: Experiment, directory: Path
    ) -> dict[str, Any]:
        assert process.stdin
        assert process.stdout
        pickle.dump((experiment, directory.absolute()), process.stdin)
        process.stdin.flush()
        facts, error = pickle.load(process.stdout)
        if error is not None:
            raise error
        return facts  # type: ignore[no-any-return]

    def call(self, function: Callable[..., Any], *given: Any, threads: int = 1) -> Any:
        """Return value of a function of a module, called in a fork; EOFError if it fails."""
        count = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
        request = {
            "words": ["-m", "tests.warm.call"],
            "path": sys.path,
            "directory": str(ROOT),
            "environment": self.environment | count,
        }
        with tempfile.TemporaryFile() as question, tempfile.TemporaryFile() as answer:
            pickle.dump((function, given), question)
            question.seek(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(self.address))
                assert sys.__stderr__ is not None
                streams = [question.fileno(), answer.fileno(), sys.__stderr__.fileno()]
                socket.send_fds(connection, [json.dumps(request).encode()], streams)
                connection.recv(16)
            answer.seek(0)
            return pickle.load(answer)
