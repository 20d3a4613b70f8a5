"""Processes that are forked from one that has imported vLLM, which takes many seconds.

All else is as in any run: a process of its own for each, below its supervisor.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run import supervisor
from kvscope.run.environment import measured_environment
from kvscope.run.supervisor import Ending, Profiling, read_session
from kvscope.runfile import LOG_FILE

ROOT = Path(__file__).parents[2]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["kvscope.run.session", "vllm.entrypoints.llm"])


@cache
def environment() -> dict[str, str]:
    """The environment that vLLM is imported in: that of an experiment by default."""
    return measured_environment(expand(None, [], ROOT / "config").experiments[0].experiment)


def start(function: Callable[..., Any], *given: Any) -> Any:
    """A process that calls a function of a module."""
    process = CONTEXT.Process(target=function, args=given)
    with mock.patch.dict(os.environ, environment(), clear=True):
        process.start()
    return process


def call(function: Callable[..., Any], *given: Any) -> Any:
    """What a function of a module returns in a process of its own; EOFError if it fails."""
    here, there = CONTEXT.Pipe(duplex=False)
    process = start(answer, there, function, given)
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def answer(into: Any, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    """The process of `call`."""
    into.send(function(*given))


def run(experiment: Experiment, directory: Path) -> dict[str, Any]:
    """`supervisor.run`."""
    if measured_environment(experiment) != environment():
        return supervisor.run(experiment, directory)
    with mock.patch.object(supervisor, "watch", watch):
        return supervisor.run(experiment, directory)


def watch(_experiment: Experiment, directory: Path, _profiling: Profiling) -> Ending:
    """`supervisor.watch` for a process that is neither profiled nor killed."""
    start(session, directory).join()
    return Ending(True, read_session(directory).get("finished", False), None)


def session(directory: Path) -> None:
    """The measured process."""
    from kvscope.run.session import main

    log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.exit(main(directory, annotate=False))
