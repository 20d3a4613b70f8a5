"""Measured processes that are forked from one that has imported vLLM, which takes many seconds.

All else is as in any run: a process of its own for each, below its supervisor.
"""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from kvscope.plan.experiment import Experiment
from kvscope.run import supervisor
from kvscope.run.environment import measured_environment
from kvscope.run.supervisor import Ending, Profiling, read_session
from kvscope.runfile import LOG_FILE

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["kvscope.run.session", "vllm.entrypoints.llm"])
_environment: dict[str, str] = {}  # that vLLM was imported in


def run(experiment: Experiment, directory: Path) -> dict[str, Any]:
    """`supervisor.run`; the first experiment decides about the environment that all must have."""
    environment = measured_environment(experiment)
    _environment.update(_environment or environment)
    if environment != _environment:
        return supervisor.run(experiment, directory)
    with mock.patch.object(supervisor, "watch", watch):
        return supervisor.run(experiment, directory)


def watch(experiment: Experiment, directory: Path, profiling: Profiling) -> Ending:
    """`supervisor.watch` for a process that is neither profiled nor killed."""
    with mock.patch.dict(os.environ, _environment, clear=True):
        process = CONTEXT.Process(target=session, args=(directory,))
        process.start()
    process.join()
    return Ending(True, read_session(directory).get("finished", False), None)


def session(directory: Path) -> None:
    """The measured process."""
    from kvscope.run.session import main

    log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.exit(main(directory, annotate=False))
