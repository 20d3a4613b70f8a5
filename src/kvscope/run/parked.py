"""A parked engine: a measured process that serves one repeat whenever its campaign asks for it.

It is a fork of `kvscope.run.zygote`. It builds and warms up its engine, says so, and waits; its
records are those of `kvscope.run.session`.
"""

import os
from pathlib import Path
from typing import Any

from kvscope.base.ranges import RUN
from kvscope.engine.marks import Marks, NvtxMarks
from kvscope.run.link import Link, Lost
from kvscope.run.locks import SESSION_LOCK, SUPERVISOR_LOCK, end_with_holder, hold_lock
from kvscope.run.progress import Progress
from kvscope.run.session import Session, conclude, measure_repeat, prepare


def main(directory: Path, link: Link, annotate: bool) -> None:
    """Serve repeats of the experiment in `directory` until told to end.

    With `annotate` they have NVTX ranges.
    """
    marks = NvtxMarks() if annotate else Marks()
    with hold_lock(directory, SESSION_LOCK):
        end_with_holder(directory, SUPERVISOR_LOCK)
        session = Session.begin(directory)
        say(link, ended=conclude(session, lambda: serve_on_demand(session, link, marks)))


def serve_on_demand(session: Session, link: Link, marks: Marks) -> None:
    """Be ready, measure a repeat for each request, and return when there are no more."""
    progress = Progress(lambda phase, share: say(link, wait=False, phase=phase, share=share))
    with marks.range(RUN), prepare(session, marks, progress) as engine:
        say(link, ready=True, repeats=len(session.repeats))
        while "serve" in (request := receive(link)):
            measure_repeat(session, engine, marks, progress, request["serve"])
            say(link, served=len(session.repeats))


def receive(link: Link) -> dict[str, Any]:
    """The next request; ends the process if its campaign has ended, whose records are complete."""
    try:
        request, _ = link.receive()
    except Lost:
        os._exit(1)
    return request


def say(link: Link, wait: bool = True, **message: Any) -> None:
    """Send a message, or drop it rather than wait; ends the process if its campaign has ended."""
    try:
        link.send(**message) if wait else link.offer(**message)
    except Lost:
        os._exit(1)
