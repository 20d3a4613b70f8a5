"""Places of experiments in a figure: along x, in a colour, in a facet, as the study says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from textwrap import fill
from typing import Any

from kvscope.plan.figures import EXPERIMENT, GRID, Axes
from kvscope.plan.named import Named, name_of
from kvscope.plan.traits import (
    ChosenOption,
    Settings,
    is_number,
    key_title,
    names,
    setting_words,
    value_words,
)
from kvscope.report.data import ReportedRun, StudyData

POLICIES = ("overflow", "batching")
LETTERS = 30  # of a line of a label
MOST_FACETS = 6  # of a key that the study did not choose

Wanted = Callable[[ReportedRun], bool]


@dataclass(frozen=True)
class Place:
    """An experiment in a figure."""

    run: ReportedRun
    x: Any
    colour: str
    facet: str


@dataclass(frozen=True)
class PlacesOfKey:
    """Places along one key; `ordered` if its values are numbers."""

    key: str
    places: tuple[Place, ...]
    ordered: bool

    @property
    def title(self) -> str:
        """Label of the axis, with its unit."""
        return key_title(self.key)

    @cached_property
    def facets(self) -> list[str]:
        """The facets, in order."""
        return [*self._by_facet]

    def of_facet(self, facet: str) -> list[Place]:
        """The places of a facet."""
        return self._by_facet[facet]

    @cached_property
    def _by_facet(self) -> dict[str, list[Place]]:
        places: dict[str, list[Place]] = {}
        for place in self.places:
            places.setdefault(place.facet, []).append(place)
        return places

    def along_x(self, facet: str) -> list[Place]:
        """The places of a facet, in the order of their values of x."""
        order = {x: number for number, x in enumerate(self.values)}
        return sorted(self.of_facet(facet), key=lambda place: order[place.x])

    @cached_property
    def colours(self) -> list[str]:
        """The names of the colours, in order."""
        return list(dict.fromkeys(place.colour for place in self.places))

    @cached_property
    def values(self) -> list[Any]:
        """The values of x in order; numbers by size."""
        distinct = list(dict.fromkeys(place.x for place in self.places))
        return sorted(distinct) if self.ordered else sorted(distinct, key=_rank(distinct))


def rows(study: StudyData, wanted: Wanted, asked: Sequence[Axes]) -> list[PlacesOfKey]:
    """The rows of a figure over the wanted experiments; by experiment where no axis suits.

    An axis suits if the experiments have two of its values or more. Rows of several grids have the
    grid's name in their facets.
    """
    runs = [run for run in study.complete if wanted(run)]
    asked = asked or (Axes(),)
    candidates = [(_row(study, runs, axes), str(axes.where.get(GRID, ""))) for axes in asked]
    suitable = [(row, grid) for row, grid in candidates if len(row.values) > 1]
    if len({grid for _, grid in suitable}) > 1:
        return [_of_grid(row, grid) for row, grid in suitable]
    return [row for row, _ in suitable] or [by_experiment(study, runs)]


def _of_grid(row: PlacesOfKey, grid: str) -> PlacesOfKey:
    """The row with the name of its grid in the facets."""
    places = (replace(place, facet=_joined((place.facet, grid))) for place in row.places)
    return replace(row, places=tuple(places))


def by_experiment(study: StudyData, runs: Sequence[ReportedRun]) -> PlacesOfKey:
    """Each experiment by its name."""
    places = tuple(Place(run, study.labels[run.id], "", "") for run in runs)
    return PlacesOfKey(EXPERIMENT, places, ordered=False)


def _row(study: StudyData, runs: Sequence[ReportedRun], axes: Axes) -> PlacesOfKey:
    chosen = [run for run in runs if study.matches(run, axes)]
    x = axes.x or _first_number(study, chosen)
    if x is None or x == EXPERIMENT:
        return by_experiment(study, chosen)
    placed = [run for run in chosen if study.value(run, x) is not None]
    facet = axes.facet or (None if axes.colour else _first_other(study, placed, x))
    colours = _colours(study, placed, x, axes.colour, facet)
    places = tuple(
        Place(run, study.value(run, x), colour, _words(study, run, facet))
        for run, colour in zip(placed, colours, strict=True)
    )
    ordered = all(is_number(place.x) and name_of(place.x) is None for place in places)
    return PlacesOfKey(x, _separate(places), ordered)


def series(row: PlacesOfKey, most: int) -> dict[str, list[tuple[str, ReportedRun]]]:
    """Experiments by plot, each with the name of its line, where a line shows one experiment.

    A plot is a facet, with lines for all colours and values of x; of more than `most` lines, each
    value of x has a plot of its own.
    """
    plots: dict[str, list[tuple[str, ReportedRun]]] = {}
    for facet in row.facets:
        places = row.along_x(facet)
        apart = len(places) > most and len(row.colours) > 1
        for place in places:
            x = place.x if row.key == EXPERIMENT else setting_words(row.key, place.x)
            plot, line = ((facet, x), (place.colour,)) if apart else ((facet,), (place.colour, x))
            plots.setdefault(_joined(plot), []).append((_joined(line), place.run))
    return plots


def split_by_colour(row: PlacesOfKey) -> PlacesOfKey:
    """The row with a plot for each colour of each facet."""
    places = (replace(place, facet=_joined((place.facet, place.colour))) for place in row.places)
    return replace(row, places=tuple(places))


def _joined(words: Sequence[str]) -> str:
    return ", ".join(filter(None, words))


def _words(study: StudyData, run: ReportedRun, key: str | None) -> str:
    if key is None:
        return ""
    value = study.value(run, key)
    return "" if value is None else value if key == GRID else setting_words(key, value)


def _first_number(study: StudyData, runs: Sequence[ReportedRun]) -> str | None:
    """The first varied number that all these experiments have, limits of the engine last.

    Without one, the first thing that varies.
    """
    keys = sorted(_varied(study, runs), key=lambda key: key.startswith("engine."))
    numbers = [key for key in keys if all(is_number(study.value(run, key)) for run in runs)]
    return next(iter([*numbers, *keys]), None)


def _first_other(study: StudyData, runs: Sequence[ReportedRun], x: str) -> str | None:
    """The first thing that varies beside x and the policies, if it has few values."""
    for key in _varied(study, runs):
        if key not in (x, *POLICIES) and not key.startswith("engine."):
            values = {str(study.value(run, key)) for run in runs}
            return key if len(values) <= MOST_FACETS else None
    return None


def _varied(study: StudyData, runs: Sequence[ReportedRun]) -> list[str]:
    keys = dict.fromkeys(chain.from_iterable(study.traits[run.id] for run in runs))
    return [key for key in keys if len({study.value(run, key) for run in runs}) > 1]


def _colours(
    study: StudyData, runs: Sequence[ReportedRun], x: str, colour: str | None, facet: str | None
) -> list[str]:
    """Values that colours stand for: those of the key, or all that varies beside x and facet."""
    if colour:
        return [_words(study, run, colour) for run in runs]
    whole = names([_without(study.traits[run.id], x, facet) for run in runs])
    names_by_id = {run.id: name for run, name in zip(runs, whole, strict=True)}
    for words in dict.fromkeys(_words(study, run, facet) for run in runs):
        group = [run for run in runs if _words(study, run, facet) == words]
        parts = names([_without(study.traits[run.id], x, facet) for run in group])
        names_by_id |= {run.id: name for run, name in zip(group, parts, strict=True) if name}
    return [names_by_id[run.id] for run in runs]


def _without(traits: Settings, *keys: str | None) -> Settings:
    return {key: value for key, value in traits.items() if key not in keys}


def _separate(places: Sequence[Place]) -> tuple[Place, ...]:
    """The places; a grid with points where its colour has one already is named in the colour."""
    taken: dict[tuple[str, str], set[Any]] = {}
    renamed: dict[tuple[str, str, str], str] = {}
    grids: dict[tuple[str, str, str], set[Any]] = {}
    for p in places:
        grids.setdefault((p.facet, p.colour, p.run.grid), set()).add(p.x)
    for (facet, colour, grid), points in grids.items():
        xs = taken.setdefault((facet, colour), set())
        if xs & points:
            renamed[facet, colour, grid] = _joined((colour, grid))
        xs |= points
    return tuple(
        replace(p, colour=renamed.get((p.facet, p.colour, p.run.grid), p.colour)) for p in places
    )


def _rank(values: Sequence[Any]) -> Callable[[Any], tuple[int, list[float]]]:
    """Sort key: options in the plan's order, variants of an option by their numbers."""
    order = {name: place for place, name in reversed(list(enumerate(map(_name, values))))}
    return lambda value: (
        order[_name(value)],
        value.numbers if isinstance(value, ChosenOption) else [],
    )


def _name(value: Any) -> str:
    return value.name if isinstance(value, ChosenOption) else str(value)


def x_words(value: Any) -> str:
    """A value of x as the label of a tick, in lines of no more than LETTERS where words allow."""
    words = value_words(value) if isinstance(value, str | Named) else str(value)
    return fill(words, LETTERS, break_long_words=False)


def strategy_key(study: StudyData) -> str | None:
    """The key by which the study's batching varies; None if it has one strategy."""
    rows = study.traits.values()
    return next(
        (
            key
            for key in ("batching", "batching.chunk_tokens")
            if len({row.get(key) for row in rows}) > 1
        ),
        None,
    )
