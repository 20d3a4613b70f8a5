"""Snakemake jobs in packs: one job of Slurm, PBS Pro or this machine runs many of them.

The packs, their ledger and their pilot are in `submitit_packs`; here Snakemake's jobs become
members, and members' ends become Snakemake's.
"""

import asyncio
import hashlib
import math
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from submitit_packs import planner, schedulers, sites
from submitit_packs.controller import Controller, Outcome
from submitit_packs.errors import BadSettings, PackError
from submitit_packs.model import Member

DEFAULT_MINUTES = 10
CACHE_ROOM_BYTES = 1 << 16
# The least and the most that a number among the settings may be.
LIMITS = {
    "gpus_per_node": (0, 1000),
    "min_nodes": (1, 10**6),
    "max_nodes": (1, 10**6),
    "length": (1, 366 * 24 * 60),
    "min_fill": (0, 1),
    "wait": (0, 10**7),
    "margin": (0, 10**6),
    "startup": (0, 10**6),
}
COUNTS = ("gpus_per_node", "min_nodes", "max_nodes")


def _setting(default: Any, help: str, type: type = str) -> Any:
    return field(default=default, metadata={"help": help, "type": type})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """Options `--submitit-…`."""

    site: str | None = _setting(
        "local", "the cluster: polaris, slurm, local, or the path of a YAML file that describes it"
    )
    queues: str | None = _setting(None, "queues to use, in order, separated by commas")
    account: str | None = _setting(None, "the account or project that is charged")
    directory: str | None = _setting(
        ".snakemake/submitit", "where packs lie, on a file system that all nodes share"
    )
    gpus_per_node: int | None = _setting(None, "GPUs of a node, if not the site's", int)
    min_nodes: int | None = _setting(
        1, "nodes of one pack at least, where there are jobs for them", int
    )
    max_nodes: int | None = _setting(None, "nodes of one pack at most", int)
    length: int | None = _setting(60, "minutes that a pack shall take where there is a choice", int)
    min_fill: float | None = _setting(
        0.5, "share of a pack's slots that must be used; with less, it waits", float
    )
    wait: int | None = _setting(0, "seconds that a pack waits to become fuller", int)
    margin: int | None = _setting(60, "seconds kept free at the end of a pack", int)
    startup: int | None = _setting(60, "seconds that a pack needs before its first member", int)
    launcher: str | None = _setting(None, "mpiexec, srun, pbs_tmrsh or fork, if not the site's")
    setup: str | None = _setting(None, "shell lines on each node, before anything else")
    stage: str | None = _setting(
        None, "a tar archive of the environment's site-packages, to be unpacked on each node"
    )
    options: str | None = _setting(
        None, "submitit's parameters as key=value, separated by commas: slurm_qos=high"
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


class Executor(RemoteExecutor):  # type: ignore[misc]
    """Snakemake's side of a controller of packs."""

    def __post_init__(self) -> None:
        """Make the controller; wrong settings raise one sentence."""
        try:
            site, settings = configuration(self.workflow.executor_settings)
            account = self.workflow.executor_settings.account
            if account and account.startswith("$"):  # a profile's, and the variable is not set
                raise PackError(f"the account is {account}: set this variable to your project")
            if site.account_required and not account:
                raise PackError(
                    f"{site.name} needs an account: set submitit-account, or the variable that the "
                    "profile reads it from"
                )
            scheduler = schedulers.of(site.scheduler, account)
            root = Path(self.workflow.executor_settings.directory)
            self.controller = Controller(root, site, settings, scheduler, self.logger.info)
        except PackError as error:
            raise WorkflowError(str(error)) from None
        self.running: dict[str, SubmittedJobInfo] = {}
        self.guard = threading.Lock()
        self._finish_late()

    # ------------------------------------------------------------------ submission

    def run_job(self, job: JobExecutorInterface) -> None:
        """Run one job."""
        self.run_jobs([job])

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Give jobs to the controller, which packs them with others or finds them in a pack."""
        members, fresh = [], []
        for job in jobs:
            self.run_job_pre(job)
            member = self._member(job)
            members.append(member)
            if self._is_outdated(job, member.key):
                fresh.append(member.key)
            info = SubmittedJobInfo(job, external_jobid=member.key, aux={"key": member.key})
            with self.guard:
                self.running[member.key] = info
            self.report_job_submission(info)
        if attached := self.controller.add(members, fresh):
            names = ", ".join(m.name for m in members if m.key in attached)
            self.logger.info(f"Re-attached to packs: {names}")

    def _member(self, job: JobExecutorInterface) -> Member:
        key = key_of(job)
        script = self.controller.root / "scripts" / f"{key}.sh"
        script.parent.mkdir(exist_ok=True)
        self.write_jobscript(job, str(script))
        jobs = jobs_of(job)
        timeout_s = sum(map(timeout_s_of, jobs))
        return Member(
            key=key,
            name=name_of(job),
            command=f"exec /bin/bash {shlex.quote(str(script))}",
            cwd=str(self.workflow.workdir_init),
            expected_s=sum(
                min(timeout_s_of(part), float(part.resources.get("expected_s", timeout_s_of(part))))
                for part in jobs
            ),
            timeout_s=timeout_s,
            gpus=max(
                int(part.resources.get("gpu", part.resources.get("gpus", 0))) for part in jobs
            ),
            exclusive=any(part.resources.get("exclusive", 0) for part in jobs),
            logs=tuple(str(file) for part in jobs for file in part.log),
        )

    def _is_outdated(self, job: JobExecutorInterface, key: str) -> bool:
        """True if a result from a time without a controller is not of this job."""
        jobs = jobs_of(job)
        if any(self.dag.reason(part).forced for part in jobs):
            return True
        place = self.controller.ledger.places.get(key)
        if place is None:
            return False
        planned = self.controller.root / place.pack / "plan.json"
        inputs = [Path(str(file)) for part in jobs for file in part.input]
        try:
            since = planned.stat().st_mtime
            return any(p.stat().st_mtime > since for p in inputs if p.exists())
        except OSError:
            return True

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:
        """A member on another node starts in $HOME, and would succeed with outputs there."""
        return f"cd {shlex.quote(str(self.workflow.workdir_init))}"

    @property
    def tmpdir(self) -> str:
        """The directory of job scripts, which must outlive this process."""
        path = self.controller.root / "scripts"
        path.mkdir(exist_ok=True)
        return str(path)

    # ------------------------------------------------------------------ ends

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that ended; give back the others."""
        outcomes = await asyncio.to_thread(self.controller.cycle)
        ended = {}
        for outcome in outcomes:
            with self.guard:
                info = self.running.pop(outcome.key, None)
            if info is not None:
                ended[outcome.key] = info
                self._report(info, outcome)
        self.controller.reported(outcomes)
        self._adapt()
        for info in active_jobs:
            if ended.get(info.aux["key"]) is not info:  # it may have been submitted again
                yield info

    def _report(self, info: SubmittedJobInfo, outcome: Outcome) -> None:
        if outcome.ok:
            self.report_job_success(info)
        else:
            if info.job.is_group():  # of which Snakemake prints no message
                self.logger.error(f"{name_of(info.job)}: {outcome.words}")
            logs = [str(outcome.log)] if outcome.log.is_file() else []
            self.report_job_error(info, msg=f"{outcome.words}\n", aux_logs=logs)

    def _adapt(self) -> None:
        """Look less often at a batch system that does not answer."""
        usual = self.workflow.remote_execution_settings.seconds_between_status_checks
        factor = 2 ** min(self.controller.no_answer, 5)
        self.next_seconds_between_status_checks = min(usual * factor, max(usual, 300))

    def _finish_late(self) -> None:
        """Write the metadata of jobs that ended while no controller ran.

        The Snakemake in the job removes the mark of an incomplete job and writes no metadata; such
        a job is done, and its end is no more the controller's.
        """
        if not self.controller.ledger.places:
            return
        late = []
        for job in self.dag.jobs:
            if self.dag.needrun(job) or not job.output:
                continue
            if all(os.path.exists(file) for file in job.output):
                if not any(self.workflow.persistence.metadata(file) for file in job.output):
                    self.workflow.async_run(self.workflow.persistence.finished(job))
                late.append(Outcome(key_of(job), True, "", None, Path()))
        self.controller.reported(late)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel every pack: by Ctrl-C."""
        self.controller.cancel()

    def shutdown(self) -> None:
        """Stop looking; scripts stay, because jobs may still need them."""
        with self.lock:
            self.wait = False
        self.wait_thread.join()
        self.controller.finish()
        self.controller.close()


def name_of(job: JobExecutorInterface) -> str:
    """A job for people: its rule or group, and the wildcards of its first job."""
    words = [str(value) for value in jobs_of(job)[0].wildcards]
    return " ".join([job.name, *words])


def jobs_of(job: JobExecutorInterface) -> list[JobExecutorInterface]:
    """The jobs of a group, which run one after the other; or the job itself."""
    return list(job.jobs) if job.is_group() else [job]


def timeout_s_of(job: JobExecutorInterface) -> float:
    """Seconds after which a job is ended."""
    return 60.0 * float(job.resources.get("runtime", DEFAULT_MINUTES))


def key_of(job: JobExecutorInterface) -> str:
    """Identity of a job from call to call: its outputs."""
    outputs = sorted(str(file) for part in jobs_of(job) for file in part.output)
    return hashlib.sha256("\0".join(outputs).encode()).hexdigest()[:16]


def checked(given: ExecutorSettings) -> ExecutorSettings:
    """Settings whose values are of their types; BadSettings names the first that cannot be used.

    A profile's values are what its YAML says, of any type.
    """
    settings: dict[str, Any] = {}
    for setting in fields(given):
        value = getattr(given, setting.name)
        if value is not None:
            is_text = setting.metadata["type"] is str
            settings[setting.name] = (_text if is_text else _number)(setting.name, value)
    return replace(given, **settings)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadSettings(f"{name.replace('_', '-')} is {value!r} but must be text")
    return str(value)


def _number(name: str, value: Any) -> float:
    least, most = LIMITS[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_whole = name not in COUNTS or number.is_integer()
    if isinstance(value, bool) or not least <= number <= most or not is_whole:
        kind = "a whole number" if name in COUNTS else "a number"
        raise BadSettings(
            f"{name.replace('_', '-')} is {value!r} but must be {kind} from {least} to {most}"
        )
    return int(number) if name in COUNTS else number


def configuration(given: ExecutorSettings) -> tuple[sites.Site, planner.Settings]:
    """The site and the planner's settings of Snakemake's; BadSettings if they cannot be used."""
    given = checked(given)
    site = sites.load(given.site or "local")
    changes: dict[str, Any] = {}
    if given.gpus_per_node is not None:
        changes["gpus_per_node"] = given.gpus_per_node
    if given.launcher:
        changes["launcher"] = given.launcher
    site = sites.changed(site, **changes)
    options = sites.options(given.options or "")
    schedulers.check_options(site.scheduler, {**site.options, **options})
    return site, planner.Settings(
        queues=tuple(word for word in (given.queues or "").split(",") if word),
        length_s=60.0 * (given.length or 60),
        min_nodes=given.min_nodes or 1,
        max_nodes=given.max_nodes,
        min_fill=given.min_fill if given.min_fill is not None else 0.5,
        wait_s=float(given.wait or 0),
        startup_s=float(given.startup if given.startup is not None else 60),
        margin_s=float(given.margin if given.margin is not None else 60),
        setup=tuple((given.setup or "").splitlines()),
        stage=given.stage or "",
        options=options,
    )


def require_source_cache() -> None:
    """SystemExit, in one sentence, if Snakemake cannot write the cache that it is about to open.

    Snakemake itself shows a traceback that names neither directory nor variable. It imports this
    module, as every plugin, before.
    """
    from snakemake.common import get_appdirs

    place = Path(get_appdirs().user_cache_dir) / "snakemake" / "source-cache"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(bytes(CACHE_ROOM_BYTES))
            probe.flush()
    except OSError as error:
        raise SystemExit(
            f"{place} cannot be written ({error.strerror}), and Snakemake keeps sources there: "
            "make room, or name another directory in XDG_CACHE_HOME"
        ) from None


if "snakemake.cli" in sys.modules:  # the command, which may be about to make a workflow
    require_source_cache()
