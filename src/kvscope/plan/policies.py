"""Policies by name: kvscope's own and those of other installed packages, without loading any.

A package registers a policy as an entry point, in its pyproject.toml:

    [project.entry-points."kvscope.overflow"]
    my_policy = "my_package.my_module:MyPolicy"
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from kvscope.errors import BadInput
from kvscope.plan.fields import Count, Gib, Part

KINDS = ("batching", "overflow")
PLUGIN = "plugin"


class Plugin(Part):
    """A policy of another package; but for the size of a host pool, settings are its own affair."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Annotated[str, Field(max_length=60)]
    host_gib: Gib | None = None
    host_blocks: Count | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the policy is made with: its own settings, and a size that was given."""
        sizes = {"host_gib": self.host_gib, "host_blocks": self.host_blocks}
        given = {key: value for key, value in sizes.items() if value is not None}
        return given | (self.model_extra or {})


def group(kind: str) -> str:
    """The entry-point group of a kind of policy: 'batching' or 'overflow'."""
    return f"kvscope.{kind}"


@cache
def registered(kind: str) -> dict[str, EntryPoint]:
    """The policies of one kind that installed packages register, by name.

    BadInput if two packages register different ones under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group(kind)):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise BadInput(
                f"{kind}={point.name} is registered twice, as {other.value} and as {point.value}; "
                "uninstall one of the packages or rename its policy"
            )
    return found


def origin(kind: str, name: str) -> str | None:
    """'long-swap 0.1, long_swap:LongSwap' of another package's policy; None of kvscope's own."""
    point = registered(kind)[name]
    if point.dist is None or point.dist.name == "kvscope":
        return None
    return f"{point.dist.name} {point.dist.version}, {point.value}"


def load(kind: str, name: str) -> Any:
    """The class of a policy; BadInput says what there is if nobody registers that name."""
    if name not in registered(kind):
        raise BadInput(unknown(kind, name))
    point = registered(kind)[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"{kind} policy {name!r} cannot be loaded from {point.value}: {error}"
        ) from error


def unknown(kind: str, name: str) -> str:
    """One sentence: there is no such policy, and there are these."""
    return (
        f"{kind}.name is {name!r} but must be one of {', '.join(sorted(registered(kind)))}, or "
        f"the name of a policy that an installed package registers under {group(kind)!r}"
    )
