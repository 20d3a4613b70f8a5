"""The figures that a study may declare, and their axes."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from kvscope.base import plugins
from kvscope.plan.fields import Part

GROUP = "kvscope.figure"  # of entry points
EXPERIMENT, GRID = "experiment", "grid"  # beside configuration keys


def figure_names() -> tuple[str, ...]:
    """The names of the figures of all installed packages, without loading any."""
    return plugins.names(GROUP)


def _known(name: str) -> str:
    if name not in figure_names():
        names = ", ".join(figure_names())
        raise PydanticKnownError("literal_error", {"expected": f"one of {names}"})
    return name


class Axes(Part):
    """The axes of a figure, as a study declares them.

    `x`, `colour` and `facet` are configuration keys (or `experiment`, `grid`); `where` selects the
    experiments that have these values. A null axis is derived from the keys that the study varies.
    """

    x: str | None = None
    colour: str | None = None
    facet: str | None = None
    where: dict[str, str | bool | int | float | None] = Field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """All keys it names."""
        return [key for key in (self.x, self.colour, self.facet, *self.where) if key]


class Entry(Part):
    """A figure that a study declares: its name, and the axes of each row of charts."""

    name: Annotated[str, AfterValidator(_known)]
    axes: list[Axes] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """NAME and {NAME: axes} and {NAME: [axes, …]}, as a study writes them."""
        if not isinstance(value, dict) or len(value) != 1:
            return {"name": value}
        ((name, axes),) = value.items()
        return {"name": name, "axes": axes if isinstance(axes, list) else [axes]}
