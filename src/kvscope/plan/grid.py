"""Expands a study and the overrides of the command line into the list of experiments."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.base.layout import AD_HOC
from kvscope.plan import levels
from kvscope.plan import overrides as command_line
from kvscope.plan import study as studies
from kvscope.plan.composition import Composer, Config
from kvscope.plan.decisions import Draft
from kvscope.plan.device import Device
from kvscope.plan.experiment import Experiment
from kvscope.plan.figures import EXPERIMENT, GRID, Axes
from kvscope.plan.levels import Levels
from kvscope.plan.pairs import compare
from kvscope.plan.point import Point, check_keys
from kvscope.plan.question import Question
from kvscope.plan.study import Grid, Settings, StudyDefinition
from kvscope.plan.traits import Compared
from kvscope.plan.wording import format_value

MAX_EXPERIMENTS = 10_000

CommandLine = dict[str, list[Any]]
Drafted = list[tuple[Point, Config]]


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment of a study: its values of the varied keys, its label, its grid."""

    experiment: Experiment
    varied: dict[str, Any]
    label: str
    grid: str


@dataclass(frozen=True)
class Plan:
    """An expanded study; `study` is None for overrides without a study.

    `varied_keys` are the keys whose values differ between its experiments, `compared` how these
    are told apart and compared, `notes` name values that an engine decided otherwise than asked.
    """

    study: str | None
    title: str
    description: str
    config_dir: Path
    overrides: tuple[str, ...]
    experiments: tuple[PlannedExperiment, ...]
    varied_keys: tuple[str, ...]
    figures: Mapping[str, tuple[Axes, ...]]
    compared: Compared
    question: Question | None = None
    levels: Levels = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def expand(study: str | None, overrides: list[str], config_dir: Path) -> Plan:
    """Expand a study, or the overrides alone if `study` is None.

    Overrides replace the study's values of the same keys in every grid. An experiment that several
    grids contain is listed once. BadInput if the study cannot be planned.
    """
    composer = Composer(config_dir)
    command = command_line.parse(overrides, config_dir)
    definition = _ad_hoc() if study is None else studies.read(study, config_dir)
    grids = [_with_command_line(grid, command) for grid in definition.grids]
    _check_question(definition)
    _check_levels(definition)
    _refuse_too_many(definition.name, grids)
    rows: dict[str, tuple[Experiment, Point, Config]] = {}
    drafted = [drafted for grid in grids for drafted in _points(grid, command, composer)]
    for point, config in _decided(drafted):
        experiment = point.experiment(config)
        rows.setdefault(experiment.id, (experiment, point, config))
    _check_axes(definition)  # after options: one of an absent package has keys that nothing knows
    if not rows:
        raise BadInput(f"study {definition.name!r} has no experiments left after its exclusions")
    varied = _varied_values([(point, config) for _, point, config in rows.values()], composer)
    compared = compare(
        [*rows],
        [levels.named(values, definition.levels) for values in varied],
        [experiment.slug for experiment, _, _ in rows.values()],
        definition.question,
    )
    planned = tuple(
        PlannedExperiment(experiment, values, compared.labels[id_], point.grid.name)
        for (id_, (experiment, point, _)), values in zip(rows.items(), varied, strict=True)
    )
    return Plan(
        study=study,
        title=definition.title,
        description=definition.description,
        config_dir=config_dir,
        overrides=tuple(overrides),
        experiments=planned,
        varied_keys=tuple(varied[0]),
        figures=definition.figures,
        compared=compared,
        question=definition.question,
        levels=definition.levels,
        notes=_notes(point for _, point, _ in rows.values()),
    )


def _ad_hoc() -> StudyDefinition:
    """The study of overrides alone: one grid that sets no key."""
    return StudyDefinition(
        AD_HOC, "Experiments of the command line", "", (Grid("", "", Path(), (), ()),), {}
    )


def _with_command_line(grid: Grid, given: CommandLine) -> Grid:
    """The grid with the overrides as axes; their keys are removed from its own axes."""
    for settings in grid.exclude:
        check_keys(settings, f"{grid.origin}, exclude")
    shortened = ([_without(row, given) for row in axis] for axis in grid.axes)
    axes = [axis for axis in shortened if any(axis)]
    command = [[{key: value} for value in values] for key, values in given.items()]
    return replace(grid, axes=(*axes, *command))


def _without(row: Settings, given: CommandLine) -> Settings:
    return {key: value for key, value in row.items() if key not in given}


def _check_axes(study: StudyDefinition) -> None:
    """Raise BadInput for a figure whose axes name an unknown key."""
    for name, rows in study.figures.items():
        for axes in rows:
            keys = {key: None for key in axes.keys if key not in (EXPERIMENT, GRID)}
            check_keys(keys, f"study {study.name}, figure {name}")


def _check_levels(study: StudyDefinition) -> None:
    """Raise BadInput if the study names values of an unknown key, or values that do not vary."""
    check_keys(dict.fromkeys(study.levels), f"study {study.name}, levels")
    values: dict[str, dict[Any, None]] = defaultdict(dict)
    for row in (row for grid in study.grids for axis in grid.axes for row in axis):
        for key, value in row.items():
            if not isinstance(value, dict):
                values[key][value] = None
    levels.check(study.levels, {key: [*distinct] for key, distinct in values.items()}, study.name)


def _check_question(study: StudyDefinition) -> None:
    """Raise BadInput if the study compares an unknown key, or with a value that no grid has."""
    asked = study.question
    if asked is None:
        return
    check_keys(asked.keys, f"study {study.name}, compare")
    rows = (row for grid in study.grids for axis in grid.axes for row in axis)
    values = dict.fromkeys(row[asked.key] for row in rows if asked.key in row)
    if asked.base not in values:
        choices = ", ".join(map(format_value, values)) or "no value"
        raise BadInput(
            f"compare.base is {format_value(asked.base)} (study {study.name}) but must be a value "
            f"that a grid gives {asked.key}: {choices}"
        )


def _refuse_too_many(study: str, grids: list[Grid]) -> None:
    count = sum(prod(len(axis) for axis in grid.axes) for grid in grids)
    if count > MAX_EXPERIMENTS:
        raise BadInput(
            f"study {study!r} has {count:,} experiments, but at most {MAX_EXPERIMENTS:,} are "
            "planned at once; shorten a list of values or split the study"
        )


def _points(grid: Grid, given: CommandLine, composer: Composer) -> Iterator[tuple[Point, Config]]:
    """The points of a grid that no exclusion matches, with their configurations."""
    for rows in product(*grid.axes):
        settings: Settings = {key: value for row in rows for key, value in row.items()}
        command = {key: value for key, value in settings.items() if key in given}
        point = Point(composer, grid, _without(settings, given), command)
        config = point.config()
        if not any(_matches(point, config, pattern) for pattern in grid.exclude):
            yield point, config


def _decided(drafted: Drafted) -> Drafted:
    """The points with the values that the engines of their devices decide."""
    by_device: dict[type[Device], dict[int, Draft]] = defaultdict(dict)
    for number, (point, config) in enumerate(drafted):
        if draft := point.draft(config):
            assert isinstance(draft.device, Device)
            by_device[type(draft.device)][number] = draft
    points = dict(enumerate(drafted))
    for kind, drafts in by_device.items():
        for number, decided in zip(drafts, kind.decide([*drafts.values()]), strict=True):
            if decided:
                point = replace(points[number][0], decided=decided)
                points[number] = point, point.config()
    return [*points.values()]


def _notes(points: Iterator[Point]) -> tuple[str, ...]:
    """The notes on values that engines decided, each once."""
    notes = (decision.note for point in points for decision in point.decided.values())
    return tuple(dict.fromkeys(filter(None, notes)))


def _matches(point: Point, config: Config, pattern: Settings) -> bool:
    return all(point.value(config, key) == value for key, value in pattern.items())


def _varied_values(points: list[tuple[Point, Config]], composer: Composer) -> list[dict[str, Any]]:
    """The values, for each point, of the keys that differ between the points."""
    keys = list(dict.fromkeys(key for point, _ in points for key in point.settings))
    rows = [
        {key: _flat_value(point.value(config, key)) for key in keys} for point, config in points
    ]
    differ = [key for key in keys if any(row[key] != rows[0][key] for row in rows)]
    varied = [key for key in differ if not _implied_by_option(key, rows, differ, composer)]
    return [{key: row[key] for key in varied} for row in rows]


def _flat_value(value: Any) -> Any:
    """A value for a table cell; a group of keys as text, 'min 5, until 0.05, budget_s 120'."""
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())


def _implied_by_option(
    key: str, rows: list[dict[str, Any]], differ: list[str], composer: Composer
) -> bool:
    """Whether the option of its group determines a key: it has one value wherever it exists."""
    group = key.partition(".")[0]
    if key == group or group not in differ or group not in composer.groups:
        return False
    values = [row[key] for row in rows if row[key] is not None]
    return all(value == values[0] for value in values)
