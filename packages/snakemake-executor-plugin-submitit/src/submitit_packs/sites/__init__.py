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
from submitit_packs.queue import Queue, seconds

SHIPPED = Path(__file__).parent
OCTAL = re.compile(r"0\d+")
ASK = "ask"  # in place of queues or GPUs: the batch system or the machine is asked


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
        if queues := tuple(self.queue(name) for name in named):
            return queues
        return tuple(queue for queue in self.queues if not queue.by_request)


def load(name: str) -> Site:
    """The site of a shipped file's name or of a file's path; BadSettings if it cannot be used."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else SHIPPED / f"{name}.yaml"
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        shipped = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.yaml")))
        raise BadSettings(
            f"site is {name!r}, which is no file; there are {shipped}, or the path of your own"
        ) from None
    except OSError as error:
        raise BadSettings(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadSettings(f"{path}: is no text in UTF-8") from None
    except yaml.YAMLError as error:
        raise BadSettings(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(plain, dict):
        raise BadSettings(f"{path}: is no site, which has name, scheduler and queues")
    try:
        return _site(plain)
    except KeyError as error:
        raise BadSettings(f"{path}: has no {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise BadSettings(f"{path}: is not a site's description: {error}") from None


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
    if not isinstance(plain.get("gpus_per_node", 1), int) or plain.get("gpus_per_node", 1) < 0:
        raise ValueError(f"gpus_per_node is {plain['gpus_per_node']!r}, which is no number of GPUs")
    required = plain.pop("account", None) == "required"
    names = {f.name for f in dataclasses.fields(Site)}
    if unknown := plain.keys() - names:
        raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
    plain["interfaces"] = tuple(plain.get("interfaces", ()))
    return Site(**plain, account_required=required, queues=asked)


def _queue(plain: dict[str, Any]) -> Queue:
    plain = dict(plain)
    least, most = plain.pop("nodes", (1, 10**6))
    shortest, longest = plain.pop("walltime", ("00:01:00", "8784:00:00"))
    names = {"name", "max_jobs", "preemptable", "by_request"}
    if unknown := plain.keys() - names - {"tiers"}:
        raise ValueError(f"queue {plain.get('name')} has unknown keys {', '.join(sorted(unknown))}")
    tiers = tuple((int(nodes), seconds(time)) for nodes, time in plain.pop("tiers", ()))
    return Queue(
        min_nodes=int(least),
        max_nodes=int(most),
        min_walltime_s=seconds(shortest),
        max_walltime_s=seconds(longest),
        tiers=tiers,
        **plain,
    )


def changed(site: Site, **changes: Any) -> Site:
    """A site with other values; the named queues and launcher must be there."""
    from submitit_packs import launchers

    changed_site = dataclasses.replace(site, **changes)
    launchers.of(changed_site.launcher)
    return changed_site


def options(text: str) -> dict[str, Any]:
    """Options of `key=value,key=value`, values as YAML reads them; BadSettings if it is not so.

    Digits after a 0 are text: of umask=022 YAML makes 18, and accounts may be numbers.
    """
    values = {}
    for word in filter(None, text.split(",")):
        key, separator, value = word.partition("=")
        if not separator or "_" not in key:
            raise BadSettings(
                f"option {word!r} is not CLUSTER_PARAMETER=VALUE, like slurm_qos=high"
            )
        try:
            values[key.strip()] = value if OCTAL.fullmatch(value) else yaml.safe_load(value)
        except yaml.YAMLError:
            raise BadSettings(f"option {word!r}: {value!r} is no value of YAML") from None
    return values
