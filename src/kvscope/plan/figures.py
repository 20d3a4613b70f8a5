"""The figures that a study may declare, and their axes."""

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from kvscope.plan.fields import Part

FigureName = Literal[
    "throughput",
    "pareto",
    "strategies",
    "window_fill",
    "latency",
    "latency_distributions",
    "goodput",
    "utilization",
    "preemptions",
    "resume_overhead",
    "resume_time",
    "swapping",
    "offload_published",
    "offload_shares",
    "kv_timeline",
    "batch_composition",
    "access_pattern",
    "access_gaps",
    "access_metrics",
    "predictions",
    "step_timeline",
    "offload_pipeline",
    "kv_accesses",
]
FIGURES: tuple[str, ...] = get_args(FigureName)
EXPERIMENT, GRID = "experiment", "grid"  # beside configuration keys


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

    name: FigureName
    axes: list[Axes] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """NAME and {NAME: axes} and {NAME: [axes, …]}, as a study writes them."""
        if not isinstance(value, dict) or len(value) != 1:
            return {"name": value}
        ((name, axes),) = value.items()
        return {"name": name, "axes": axes if isinstance(axes, list) else [axes]}
