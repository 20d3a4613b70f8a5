"""The profiled repeat of each experiment of a campaign, after its rounds.

A second process that imports vLLM runs under the profiler, and its forks serve one repeat each,
which alone is captured. Nothing of the rounds is under the profiler.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from kvscope.base.errors import KvscopeError
from kvscope.base.processes import no_child_left
from kvscope.engine.devices.platform import platform_of
from kvscope.plan.experiment import Experiment
from kvscope.run.attempt import read_session, repeats_of
from kvscope.run.block import Show
from kvscope.run.capture import CaptureSession, export
from kvscope.run.engines import Zygote
from kvscope.run.profiler import Nsys
from kvscope.run.rounds import PROFILED, Group, Member
from kvscope.tables.runfile import NSYS_EXPORT, NSYS_REPORT

TRACE = "trace"
# One engine starts and warms up while another one's repeat is captured.
AT_A_TIME = 2


def profile(
    members: Mapping[str, Member],
    nsys: Nsys,
    environment: Mapping[str, str],
    temporary: Path,
    show: Show,
) -> dict[str, str]:
    """Serve one repeat of each member under the profiler; by id the reason for a missing trace.

    Members that have one are left as they are. nsys keeps its files in $TMPDIR, and the log of the
    process that imports vLLM is in `temporary`.
    """
    pending = {
        i: member
        for i, member in members.items()
        if not _has_profiled(member.directory, NSYS_EXPORT)
    }
    if not pending:
        return {}
    first = next(iter(pending.values())).experiment
    platform = platform_of(first)
    session = CaptureSession(nsys, platform.profiler_options, environment)
    one_at_a_time, done = Lock(), 0
    failed: dict[str, str] = {}

    def serve(item: tuple[str, Member]) -> str | None:
        """Profile a group of members; returns why a member has no trace."""
        reason = serve_once(item)
        return reason if reason is None or failed else serve_once(item)

    def serve_once(item: tuple[str, Member]) -> str | None:
        try:
            if not _has_profiled(item[1].directory, NSYS_REPORT):
                with Group(dict([item]), zygote) as group:
                    _serve(group, session, zygote, one_at_a_time)
                if group.failed:
                    return str(group.failed[item[0]])
            return export(nsys, item[1].directory, environment)
        except KvscopeError as error:
            return str(error)

    log = temporary / "profiled.log"
    with Zygote(environment, platform.worker_modules, log, session.prefix) as zygote:
        show("importing vLLM under the profiler")
        if reason := _start(zygote) and _start(zygote):  # beside other load nsys may fail once
            return dict.fromkeys(pending, reason)
        # In case of an error the last two end the waiting of the first one's threads.
        with ThreadPoolExecutor(at_a_time(first)) as pool, no_child_left(), zygote:
            for i, reason in zip(pending, pool.map(serve, pending.items()), strict=True):
                done += 1
                show(f"{done} of {len(pending)} profiled")
                if reason is not None:
                    failed[i] = reason
    return failed


def at_a_time(experiment: Experiment) -> int:
    """Engines that may stand at a time: one where each needs the GPU as a whole."""
    return 1 if experiment.device.gpus else AT_A_TIME


def _start(zygote: Zygote) -> str | None:
    """Start the process that imports vLLM; returns why it does not run, or None."""
    try:
        zygote.start()
    except KvscopeError as error:
        return str(error)
    return None


def _serve(group: Group, session: CaptureSession, zygote: Zygote, one_at_a_time: Lock) -> None:
    """Capture one repeat of the group's only member."""
    ((name, member),) = group.members.items()
    if name in group.failed or zygote.pid is None:
        return
    with one_at_a_time, session.capture(zygote.pid, member.directory / TRACE):
        served = group.serve(name, {PROFILED: True})
    if not served:
        raise KvscopeError("the engine was lost in the profiled repeat")
    group.finish()


def _has_profiled(directory: Path, file: str) -> bool:
    """Whether an attempt has a profiled repeat and this file of it: the report, or its export."""
    if not (directory / file).exists():
        return False
    return any(entry.get(PROFILED) for entry in repeats_of(read_session(directory)))
