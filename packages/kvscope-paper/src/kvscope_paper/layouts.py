"""How each figure of the paper was published: its plots, as data."""

from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from kvscope.plan import documents
from kvscope.plan.fields import Part, Real
from kvscope.report.settings import flat
from kvscope_paper.published.figures import Value

FILE = Path(__file__).parent / "layouts.yaml"


class Plot(Part):
    """Published values of one table beside ours.

    `x` is a setting or the pass; `colour` and `panel` are settings, of which those that an
    experiment has say its colour and its plot. `x_labels` are words for values of `x`, `heading`
    the plot's title where it is not the table's, `width` its share of the page.
    """

    table: str
    mark: Literal["bars", "lines"]
    x: str
    x_title: str
    x_labels: dict[str, str] = Field(default_factory=dict)
    logarithmic: bool = False
    colour: list[str] = Field(default_factory=list)
    panel: list[str] = Field(default_factory=list)
    heading: str = ""
    width: Real | None = None


class OfRuns(Part):
    """A figure of kvscope for the experiments with these settings; a list: one of its values."""

    figure: Literal["kv_timeline", "access_pattern"]
    where: dict[str, Value | list[Value | None] | None]

    def fits(self, settings: dict[str, Any]) -> bool:
        """Whether an experiment with these settings is one of them; a path counts by its name."""
        found = dict(flat(settings))
        return all(
            _value(key, found.get(key)) in (allowed if isinstance(allowed, list) else [allowed])
            for key, allowed in self.where.items()
        )


def _value(key: str, value: Any) -> Any:
    is_path = key.endswith(".path") and isinstance(value, str)
    return PurePosixPath(value).name if is_path else value


class Layout(Part):
    """A figure as published; `also` is what it is called where it was published again."""

    figure: str
    title: str
    also: str = ""
    plots: list[Plot] = Field(default_factory=list)
    runs: OfRuns | None = None

    @property
    def slug(self) -> str:
        """Its place on the page and the name of its files: 'figure-3a'."""
        return f"figure-{self.figure.replace(' ', '-')}"


@cache
def layouts() -> tuple[Layout, ...]:
    """All figures, in the order of the paper; BadInput if the file is damaged."""
    return tuple(Layout.model_validate(entry) for entry in documents.load(FILE))
