"""A study on a cluster without Snakemake: `kvscope submit`."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvscope.api.errors import BadInput, KvscopeError
from kvscope.api.plan import batches
from kvscope_cluster import packs_directory
from kvscope_cluster.members import members, unfinished
from snakemake_executor_plugin_submitit import ExecutorSettings, configuration
from submitit_packs import planner, schedulers, sites
from submitit_packs.controller import Controller, Outcome, in_packs
from submitit_packs.directory import PackDirectory
from submitit_packs.errors import BadSettings, PackError

SITES = {"pbs": "polaris", "slurm": "slurm", "local": "local"}  # of a cluster, unless one is named
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True)
class Cluster:
    """Options of `kvscope submit`: cluster, profile, site and packs.

    Attributes
    ----------
    name
        pbs, slurm or local; None for that of the site
    profile
        the directory of a Snakemake profile, whose `submitit-…` hold where nothing else is given
    site
        a shipped site's name or a file's path
    length_min
        the minutes that a pack shall take
    options
        submitit's parameters, `slurm_qos=high,pbs_filesystems=home`, in addition to the profile's
    poll_s
        seconds between two looks at the jobs
    """

    name: str | None = None
    profile: Path | None = None
    site: str | None = None
    account: str | None = None
    queues: tuple[str, ...] = ()
    length_min: float | None = None
    max_nodes: int | None = None
    min_fill: float | None = None
    setup: tuple[str, ...] = ()
    options: str = ""
    poll_s: float = 10.0

    def resolve(self) -> tuple[sites.Site, planner.Settings, schedulers.Scheduler]:
        """The site, how packs are made, and the batch system; BadInput if that is not possible."""
        try:
            given = self._settings()
            site, settings = configuration(given)
            if self.name not in (None, site.scheduler):
                raise BadSettings(
                    f"--site {site.name} is one of {site.scheduler}, and --cluster is {self.name}"
                )
            account = given.account
            if account and account.startswith("$"):
                raise BadSettings(f"the account is {account}: set this variable to your project")
            if site.account_required and not account:
                raise BadSettings(f"{site.name} needs an account: --account PROJECT")
            site.candidates(settings.queues)
            return site, settings, schedulers.of(site.scheduler, account)
        except PackError as error:
            raise BadInput(str(error)) from None

    def _settings(self) -> ExecutorSettings:
        """Settings of the executor plugin: the profile's, overridden by given options."""
        settings = profile_settings(self.profile) if self.profile else {}
        given = {
            "site": self.site or (SITES[self.name] if self.name and not self.profile else None),
            "account": self.account,
            "queues": ",".join(self.queues),
            "length": self.length_min,
            "max_nodes": self.max_nodes,
            "min_fill": self.min_fill,
            "setup": "\n".join(self.setup),
            "options": ",".join(filter(None, (settings.get("options"), self.options))),
        }
        settings |= {name: value for name, value in given.items() if value not in (None, "")}
        return ExecutorSettings(**settings)


def profile_settings(profile: Path) -> dict[str, Any]:
    """The `submitit-…` settings of a Snakemake profile, with variables filled in.

    BadSettings if there is no such profile, or it has a setting that the plugin does not know.
    """
    path = profile / "config.yaml"
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BadSettings(f"{path} is no profile: {' '.join(str(error).split())}") from None
    names = {field.name for field in dataclasses.fields(ExecutorSettings)}
    settings = {}
    for key, value in (plain if isinstance(plain, dict) else {}).items():
        name = key.removeprefix("submitit-").replace("-", "_")
        if not key.startswith("submitit-"):
            continue
        if name not in names:
            raise BadSettings(f"{path}: there is no setting {key}")
        settings[name] = os.path.expandvars(value) if isinstance(value, str) else value
    return settings


def preview(manifest: Mapping[str, Any], results: Path, cluster: Cluster) -> Iterator[str]:
    """Every job script that `submit` would submit, and the node-hours that all cost at most.

    A script is what the batch system would be given, but for the pack's id, which is drawn anew.
    """
    site, settings, scheduler = cluster.resolve()
    root, todo = packs_directory(results).resolve(), members(manifest, results)
    attached, jobs = in_packs(root, todo)
    try:
        planned = planner.plan([m for m in todo if m.key not in attached], site, settings, jobs)
        for pack in planned.packs:
            batched = [batches.of_name(manifest, m.name) or [m.name] for m in pack.members]
            yield (
                f"# {pack.id}: {sum(map(len, batched))} experiments on {pack.nodes} nodes x "
                f"{pack.slots_per_node} slots ({pack.fill:.0%} used), at most "
                f"{pack.node_hours:.2f} node-hours"
            )
            yield from (f"#   {' '.join(ids)}" for ids in batched)
            yield scheduler.script(pack, PackDirectory(root / pack.id)).removesuffix("\n")
    except PackError as error:
        raise BadInput(str(error)) from None
    for reason in sorted(set(planned.waiting.values())):
        count = list(planned.waiting.values()).count(reason)
        yield f"# {count} more: {reason}"
    if attached:
        yield f"# {len(attached)} batches are in packs already"
    hours = sum(pack.node_hours for pack in planned.packs)
    left = len(unfinished(manifest, results))
    yield f"# {len(planned.packs)} jobs, {left} experiments, at most {hours:.2f} node-hours"


def submit(
    manifest: Mapping[str, Any],
    results: Path,
    cluster: Cluster,
    say: Callable[[str], None],
    show: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Run a study's experiments on a cluster, and wait for all; how each ended.

    `say` is given lines for people, `show` is called after each look. A second call finds what the
    first one submitted, also after `kill -9`; KeyboardInterrupt cancels the jobs.
    """
    site, settings, scheduler = cluster.resolve()
    outcomes: list[Outcome] = []
    controller = None
    try:
        controller = Controller(packs_directory(results), site, settings, scheduler, say)
        todo = members(manifest, results)
        if attached := controller.add(todo):
            say(f"{len(attached)} experiments are in packs already")
        while not controller.is_idle:
            ended = controller.cycle()
            for outcome in ended:
                say(f"{outcome.key}: {outcome.words}")
            controller.reported(ended)
            outcomes += ended
            show()
            if not controller.is_idle:
                time.sleep(min(cluster.poll_s * 2**controller.no_answer, LONGEST_PAUSE_S))
        controller.finish()
    except KeyboardInterrupt:
        if controller:
            controller.cancel()
        raise
    except BadSettings as error:
        raise BadInput(str(error)) from None
    except PackError as error:
        raise KvscopeError(str(error)) from None
    finally:
        if controller:
            controller.close()
    return outcomes
