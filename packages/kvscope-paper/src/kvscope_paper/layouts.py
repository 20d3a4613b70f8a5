"""Published layout of each figure of the paper: its plots, as data."""

from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from kvscope.api.settings import documents, fields
from kvscope.api.wording import traits
from kvscope_paper.published.figures import Value

FILE = Path(__file__).parent / "layouts.yaml"


def as_list(given: Any) -> Any:
    """A single text as a list of it."""
    return [given] if isinstance(given, str) else given


Titles = Annotated[list[str], BeforeValidator(as_list)]
"""One title of a published table, or several."""


class RightAxis(fields.Part):
    """Right-hand side of a plot: other tables as thin lines, or its own values as shares.

    With `of`, the axis on the left reaches from 0 to that value, and the one on the right to 100 %.
    """

    title: str
    table: Titles = Field(default_factory=list)
    of: fields.Real | None = None


class Plot(fields.Part):
    """Published values of one table, or of several together, beside ours.

    `x` is a setting or the pass; `colour` and `panel` are settings, of which those that an
    experiment has say its colour and its plot. `x_labels` are words for values of `x` in the order
    of the axis, `labels` those for the values of `colour` and `panel`, joined by commas; `y_title`
    is the axis' where it is not the table's.
    """

    table: Titles
    mark: Literal["bars", "lines"]
    x: str
    x_title: str
    x_labels: dict[str, str] = Field(default_factory=dict)
    y_title: str = ""
    logarithmic: bool = False
    colour: list[str] = Field(default_factory=list)
    panel: list[str] = Field(default_factory=list)
    labels: dict[str, str] = Field(default_factory=dict)
    right: RightAxis | None = None

    @property
    def tables(self) -> list[str]:
        """The titles of all tables that it shows."""
        return [*self.table, *(self.right.table if self.right else ())]


class OfRuns(fields.Part):
    """A figure of single experiments, those with these settings; a list: one of its values.

    `figure` is one of kvscope, or of kvscope_paper.of_runs. `published` names the published series
    that stands beside them.
    """

    figure: Literal["kv_timeline", "writes", "reads", "use", "use_and_throughput"]
    published: str = ""
    where: dict[str, Value | list[Value | None] | None]

    def fits(self, settings: dict[str, Any]) -> bool:
        """True if an experiment with these settings is selected; a path counts by its name."""
        dotted = dict(traits.flat(settings))
        return all(
            _value(key, dotted.get(key)) in (allowed if isinstance(allowed, list) else [allowed])
            for key, allowed in self.where.items()
        )


def _value(key: str, value: Any) -> Any:
    is_path = key.endswith(".path") and isinstance(value, str)
    return PurePosixPath(value).name if is_path else value


class Layout(fields.Part):
    """Layout of a published figure; `also` is its name where it was published again."""

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
