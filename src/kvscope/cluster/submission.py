"""A study on a cluster without Snakemake: `kvscope submit`."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.cluster.members import members
from kvscope.errors import BadInput, KvscopeError
from kvscope.layout import packs_directory
from submitit_packs import planner, schedulers, sites
from submitit_packs.controller import Controller, Outcome
from submitit_packs.directory import PackDirectory
from submitit_packs.errors import BadSettings, PackError

SITES = {"pbs": "polaris", "slurm": "slurm", "local": "local"}  # of a cluster, unless one is named
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True)
class Cluster:
    """Where and how to submit: what `kvscope submit` is given.

    `site` is a shipped site's name or a file's path; `length_min` the minutes that a pack shall
    take; `options` submitit's parameters, `slurm_qos=high,pbs_filesystems=home`.
    """

    name: str
    site: str | None = None
    account: str | None = None
    queues: tuple[str, ...] = ()
    length_min: float = 60.0
    max_nodes: int | None = None
    min_fill: float = 0.5
    wait_s: float = 0.0
    setup: tuple[str, ...] = ()
    options: str = ""
    poll_s: float = 10.0

    def resolve(self) -> tuple[sites.Site, planner.Settings, schedulers.Scheduler]:
        """The site, how packs are made, and the batch system; BadInput if that is not possible."""
        try:
            site = sites.load(self.site or SITES.get(self.name, self.name))
            if site.scheduler != self.name:
                raise BadSettings(
                    f"--site {site.name} is one of {site.scheduler}, and --cluster is {self.name}"
                )
            if site.account_required and not self.account:
                raise BadSettings(f"{site.name} needs an account: --account PROJECT")
            settings = planner.Settings(
                queues=self.queues,
                length_s=60 * self.length_min,
                max_nodes=self.max_nodes,
                min_fill=self.min_fill,
                wait_s=self.wait_s,
                setup=self.setup,
                options=sites.options(self.options),
            )
            site.candidates(self.queues)
            return site, settings, schedulers.of(site.scheduler, self.account)
        except PackError as error:
            raise BadInput(str(error)) from None


def preview(manifest: Mapping[str, Any], results: Path, cluster: Cluster) -> Iterator[str]:
    """Every job script that would be submitted, and the node-hours that all cost at most."""
    site, settings, scheduler = cluster.resolve()
    todo = members(manifest, results)
    try:
        planned = planner.plan(todo, site, settings)
        for pack in planned.packs:
            directory = PackDirectory(packs_directory(results) / pack.id)
            yield (
                f"# {pack.id}: {len(pack.members)} experiments on {pack.nodes} nodes x "
                f"{pack.slots_per_node} slots ({pack.fill:.0%} used), at most "
                f"{pack.node_hours:.2f} node-hours"
            )
            yield from (f"#   {member.name}" for member in pack.members)
            yield scheduler.script(pack, directory)
    except PackError as error:
        raise BadInput(str(error)) from None
    for reason in sorted(set(planned.waiting.values())):
        count = list(planned.waiting.values()).count(reason)
        yield f"# {count} experiments: {reason}"
    hours = sum(pack.node_hours for pack in planned.packs)
    yield f"# {len(planned.packs)} jobs, {len(todo)} experiments, at most {hours:.2f} node-hours"


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
