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
from kvscope.plan.fields import Part

KINDS = ("batching", "overflow")
PLUGIN = "plugin"


class Plugin(Part):
    """A policy of another package; its settings are its own affair."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Annotated[str, Field(max_length=60)]

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


def group(kind: str) -> str:
    """The entry-point group of a kind of policy: 'batching' or 'overflow'."""
    return f"kvscope.{kind}"


@cache
def registered(kind: str) -> dict[str, EntryPoint]:
    """The policies of one kind that installed packages register, by name."""
    return {point.name: point for point in entry_points(group=group(kind))}


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
