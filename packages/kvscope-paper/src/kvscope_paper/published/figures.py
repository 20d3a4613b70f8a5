"""Series of values of the paper's figures, and the experiments that stand for them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from kvscope.api.settings import documents, fields

Share = Annotated[fields.Real, Field(ge=0, le=1)]

FILE = Path(__file__).parent / "figures.yaml"
USUAL_MODEL = "yarn-llama-2-7b"  # of series that name none
PASS = "pass"  # the x of a table whose values are those of single passes of one experiment

Value = str | int | fields.Real


class Series(fields.Part):
    """Values at those of one setting, of experiments that share the settings `where`.

    `in_paper`: the paper's figure shows them. Others are of the same kind, and published with the
    paper's artifact alone. `stalled_at`: where in `at` the published runs hold a stall of the host.
    """

    where: dict[str, Value]
    in_paper: bool = True
    stalled_at: list[Value] = Field(default_factory=list)
    at: list[Value]
    values: list[fields.Real]


class Table(fields.Part):
    """One metric of a figure.

    `x` is the setting over which each series runs, or PASS. `at_pass`: each value is that of this
    pass of its experiment. `from_idle`: each experiment was timed on a GPU that was idle before.
    `resolution`, of shares: they were published in steps of it. `unpublished`: settings of the
    experiments that were not published, and that the study guesses. `given`: the experiments are
    given these values, so that they are drawn and not counted. `corrected`: what is measured beside
    a stall of the host was cut from the published values.
    """

    figure: str
    title: str
    metric: str
    x: str
    provenance: Literal[
        "plotted constant",
        "recomputed from a published log",
        "recomputed from a published series",
        "recomputed from a published trace",
        "constant of an earlier version of the notebook",
    ]
    note: str = ""
    at_pass: int | None = None
    given: bool = False
    corrected: bool = False
    from_idle: bool = False
    resolution: Share | None = None
    unpublished: str = ""
    series: list[Series] = Field(min_length=1)


@dataclass(frozen=True)
class Point:
    """One published value, and the settings of its experiment.

    `in_paper`: the paper's figure shows it. `stalled`: its run holds a stall of the host.
    """

    table: Table
    settings: Mapping[str, Any]
    x: Any
    value: float
    in_paper: bool = True
    stalled: bool = False

    @property
    def experiment(self) -> tuple[Any, ...]:
        """Metric and settings: equal where two figures show one metric of one experiment."""
        settings = sorted((key, str(value)) for key, value in self.settings.items())
        return (self.table.metric, *settings)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Identity of a value, equal where two tables show it, as without stalls."""
        return (str(self.x), self.value, *self.experiment)

    def fits(self, settings: Mapping[str, Any]) -> bool:
        """True if an experiment, by its dotted keys, stands for this value."""
        wanted = {"model.name": USUAL_MODEL, **self.settings}
        return all(_same(key, settings.get(key), value) for key, value in wanted.items())


def _same(key: str, value: Any, wanted: Any) -> bool:
    """True if the values are equal; a path counts by its file's name."""
    if key.endswith(".path") and isinstance(value, str):
        value = PurePosixPath(value).name
    return bool(value == wanted)


@cache
def tables() -> tuple[Table, ...]:
    """Every published table; BadInput if the file is damaged."""
    return tuple(Table.model_validate(entry) for entry in documents.load(FILE))


def points(figures: tuple[str, ...] = ()) -> Iterator[Point]:
    """Every published value, or those of some figures."""
    for table in tables():
        if figures and table.figure not in figures:
            continue
        for series in table.series:
            for x, value in zip(series.at, series.values, strict=True):
                setting = {} if table.x == PASS else {table.x: x}
                stalled = x in series.stalled_at
                yield Point(table, series.where | setting, x, value, series.in_paper, stalled)
