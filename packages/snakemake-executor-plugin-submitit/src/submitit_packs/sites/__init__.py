"""Clusters as data: nodes, GPUs, and the limits of queues.

A site is a YAML file, shipped here with its sources and their date, or a user's own (by its path).
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from submitit_packs.errors import BadSettings

SHIPPED = Path(__file__).parent
ASK = "ask"  # in place of queues or GPUs: the batch system or the machine is asked


@dataclass(frozen=True)
class Queue:
    """A queue's limits, ends included.

    Attributes
    ----------
    max_jobs
        of one user, queued and running together; None if there is no limit
    tiers
        (nodes, seconds): up to so many nodes, a job may take so long
    preemptable
        whether a job may be ended at any time, and run again
    by_request
        whether it is used only where it is named
    """

    name: str
    min_nodes: int = 1
    max_nodes: int = 10**6
    min_walltime_s: int = 60
    max_walltime_s: int = 366 * 86400
    max_jobs: int | None = None
    tiers: tuple[tuple[int, int], ...] = ()
    preemptable: bool = False
    by_request: bool = False

    def longest_s(self, nodes: int) -> int:
        """The longest walltime of a job with so many nodes, in seconds."""
        for most, walltime_s in self.tiers:
            if nodes <= most:
                return min(walltime_s, self.max_walltime_s)
        return self.max_walltime_s

    def complaint(self, nodes: int, walltime_s: float) -> str | None:
        """Why a job does not fit, in words; None if it does."""
        if not self.min_nodes <= nodes <= self.max_nodes:
            return (
                f"{nodes} nodes, and queue {self.name} takes {self.min_nodes} to {self.max_nodes}"
            )
        if walltime_s > self.longest_s(nodes):
            limit = hours(self.longest_s(nodes))
            return f"{hours(walltime_s)} on {nodes} nodes, and queue {self.name} ends at {limit}"
        return None


@dataclass(frozen=True)
class Site:
    """A cluster."""

    name: str
    scheduler: str
    gpus_per_node: int = 1
    launcher: str = "fork"
    affinity: str = "none"
    interfaces: tuple[str, ...] = ()
    account_required: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    queues: tuple[Queue, ...] = ()
    date: str = ""

    def queue(self, name: str) -> Queue:
        """The queue of a name; BadSettings names those that there are."""
        for queue in self.queues:
            if queue.name == name:
                return queue
        names = ", ".join(queue.name for queue in self.queues)
        raise BadSettings(f"queue is {name!r}, and {self.name} has {names or 'no queue'}")

    def candidates(self, named: Iterable[str] = ()) -> tuple[Queue, ...]:
        """The queues that may be used: those that are named, or all that need no request."""
        if found := tuple(self.queue(name) for name in named):
            return found
        return tuple(queue for queue in self.queues if not queue.by_request)


def load(name: str) -> Site:
    """The site of a shipped file's name or of a file's path; BadSettings if it cannot be used."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else SHIPPED / f"{name}.yaml"
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        shipped = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.yaml")))
        raise BadSettings(
            f"site is {name!r}, which is no file; there are {shipped}, or the path of your own"
        ) from None
    except yaml.YAMLError as error:
        raise BadSettings(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    try:
        return _site(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadSettings(f"{path}: is not a site's description: {error!r}") from None


def _site(plain: dict[str, Any]) -> Site:
    plain = dict(plain)
    scheduler, queues = plain["scheduler"], plain.pop("queues", [])
    if plain.get("gpus_per_node") == ASK:
        from submitit_packs.schedulers import local

        plain["gpus_per_node"] = local.gpus()
    if queues == ASK:
        from submitit_packs.schedulers import slurm

        if scheduler != "slurm":
            raise ValueError(f"queues cannot be asked of {scheduler}")
        asked = slurm.partitions()
        plain.setdefault("gpus_per_node", slurm.gpus_per_node())
    else:
        asked = tuple(_queue(queue) for queue in queues)
    required = plain.pop("account", None) == "required"
    known = {f.name for f in dataclasses.fields(Site)}
    if unknown := plain.keys() - known:
        raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
    plain["interfaces"] = tuple(plain.get("interfaces", ()))
    return Site(**plain, account_required=required, queues=asked)


def _queue(plain: dict[str, Any]) -> Queue:
    plain = dict(plain)
    least, most = plain.pop("nodes", (1, 10**6))
    shortest, longest = plain.pop("walltime", ("00:01:00", "8784:00:00"))
    tiers = tuple((int(nodes), seconds(time)) for nodes, time in plain.pop("tiers", ()))
    return Queue(
        min_nodes=least,
        max_nodes=most,
        min_walltime_s=seconds(shortest),
        max_walltime_s=seconds(longest),
        tiers=tiers,
        **plain,
    )


def seconds(time: str) -> int:
    """Seconds of HH:MM:SS, MM:SS or D-HH:MM:SS; ValueError if it is none of these."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", time)
    if not match:
        raise ValueError(f"{time!r} is not HH:MM:SS")
    days, hour, minute, second = (int(part or 0) for part in match.groups())
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def hours(time_s: float) -> str:
    """HH:MM:SS of seconds."""
    minutes, second = divmod(round(time_s), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"


def changed(site: Site, **changes: Any) -> Site:
    """A site with other values; the named queues and launcher must be there."""
    from submitit_packs import launchers

    found = dataclasses.replace(site, **changes)
    launchers.of(found.launcher)
    return found


def options(text: str) -> dict[str, Any]:
    """Options of `key=value,key=value`, values as YAML reads them; BadSettings if it is not so."""
    found = {}
    for word in filter(None, text.split(",")):
        key, separator, value = word.partition("=")
        if not separator or "_" not in key:
            raise BadSettings(
                f"option {word!r} is not CLUSTER_PARAMETER=VALUE, like slurm_qos=high"
            )
        found[key.strip()] = yaml.safe_load(value)
    return found
