"""The study file: a title and grids of experiments, each a product of axes minus exclusions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from kvscope.base.errors import BadInput
from kvscope.base.files import check_name
from kvscope.base.layout import AD_HOC
from kvscope.plan import documents, layers
from kvscope.plan.complaints import validation_message
from kvscope.plan.fields import Part, as_number
from kvscope.plan.figures import Axes, Entry
from kvscope.plan.levels import Levels
from kvscope.plan.question import Question
from kvscope.plan.repeats import RepeatsUntil
from kvscope.plan.wording import but_one_of, format_value

# Values of dotted configuration keys, set together.
Settings = dict[str, Any]


def _single(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict) and value.keys() & {*RepeatsUntil.model_fields, "max"}:
        return value  # validated as part of the experiment
    raise PydanticCustomError("single_value", "a single value (text, number, true, false, null)")


def _blocks(value: Any) -> Any:
    """A list of rows is read as one linked block."""
    rows = isinstance(value, list) and all(isinstance(row, dict) for row in value)
    return [value] if rows and value else value


Value = Annotated[Any, AfterValidator(_single)]
Row = Annotated[dict[str, Value], Field(min_length=1)]
Values = Annotated[list[Value], Field(min_length=1)]
Rows = Annotated[list[Row], Field(min_length=1)]


def _level(name: str) -> str:
    if name.strip() != name or not name.isprintable() or not 1 <= len(name) <= LONGEST_LEVEL:
        raise PydanticCustomError(
            "level", f"a name of 1 to {LONGEST_LEVEL} letters, without spaces at its ends"
        )
    return name


LONGEST_LEVEL = 60
LevelName = Annotated[str, AfterValidator(_level)]
LevelNames = Annotated[dict[str | int | float, LevelName], Field(min_length=1)]


class GridFile(Part):
    """A grid, as written."""

    name: str
    set: dict[str, Value] = Field(default_factory=dict)
    product: dict[str, Values] = Field(default_factory=dict)
    linked: Annotated[list[Rows], BeforeValidator(_blocks)] = Field(default_factory=list)
    exclude: list[Row] = Field(default_factory=list)


class StudyFile(Part):
    """A study, as written."""

    title: str
    description: str = ""
    compare: Question | None = None
    levels: dict[str, LevelNames] = Field(default_factory=dict)
    grids: Annotated[list[GridFile], Field(min_length=1)]
    figures: list[Entry] = Field(default_factory=list)


@dataclass(frozen=True)
class Grid:
    """A grid: each experiment takes one of the settings of each axis.

    `origin` is the place of the grid in words, `directory` that of its file.
    """

    name: str
    origin: str
    directory: Path
    axes: tuple[list[Settings], ...]
    exclude: tuple[Settings, ...]


@dataclass(frozen=True)
class StudyDefinition:
    """A named list of grids, the figures they feed with the axes of each, and what is asked."""

    name: str
    title: str
    description: str
    grids: tuple[Grid, ...]
    figures: Mapping[str, tuple[Axes, ...]]
    question: Question | None = None
    levels: Levels = field(default_factory=dict)


def read(name: str, config_dir: Path) -> StudyDefinition:
    """Read study/NAME.yaml of the first layer that has it; BadInput lists the studies."""
    studies = layers.options(config_dir, "study")
    check_name(name, "study")
    if name not in studies:
        raise BadInput(
            f"study is {name!r}{but_one_of('study', name, studies)} "
            f"({layers.places(config_dir, 'study')})"
        )
    path = studies[name]
    if name == AD_HOC:
        raise BadInput(
            f"a study cannot be called {name!r} ({path}), the name of plans without a study; "
            "rename the file"
        )
    content = documents.load_mapping(path)
    try:
        file = StudyFile.model_validate(content)
    except ValidationError as error:
        raise validation_message(StudyFile, error, lambda key: str(path)) from None
    grids = tuple(_grid(grid, path) for grid in file.grids)
    figures: dict[str, tuple[Axes, ...]] = {entry.name: tuple(entry.axes) for entry in file.figures}
    question = _question(file.compare)
    levels = {
        key: {as_number(key, number(value)): words for value, words in names.items()}
        for key, names in file.levels.items()
    }
    return StudyDefinition(name, file.title, file.description, grids, figures, question, levels)


def _grid(file: GridFile, path: Path) -> Grid:
    origin = f"{path} grid {format_value(file.name)}"
    fixed: list[list[Settings]] = [[file.set]] if file.set else []
    product = [[{key: value} for value in values] for key, values in file.product.items()]
    axes = tuple([*map(_in_units, axis)] for axis in (*fixed, *file.linked, *product))
    _refuse_repeated_keys(axes, origin)
    return Grid(file.name, origin, path.parent, axes, tuple(map(_in_units, file.exclude)))


def number(value: Any) -> Any:
    """The number that a text in quotes is; else the value."""
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) and "_" not in value else value
        except ValueError:
            continue
    return value


def _in_units(row: Settings) -> Settings:
    """The row with sizes and durations as numbers in their keys' units."""
    return {key: as_number(key, value) for key, value in row.items()}


def _question(asked: Question | None) -> Question | None:
    """The question with its base in the unit of its key."""
    return asked and asked.model_copy(update={"base": as_number(asked.key, asked.base)})


def _refuse_repeated_keys(axes: tuple[list[Settings], ...], origin: str) -> None:
    used: set[str] = set()
    for axis in axes:
        keys = {key for row in axis for key in row}
        if keys & used:
            raise BadInput(
                f"{min(keys & used)} is set twice ({origin}) but must be in one place of "
                "set, product and linked"
            )
        used |= keys
