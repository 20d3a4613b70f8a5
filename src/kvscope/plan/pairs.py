"""Experiments of a study told apart and compared: their labels, their traits, and their pairs.

Two experiments are compared if their settings are equal but for what is compared:

- a study's page compares experiments that differ in one varied key alone (`compare`); the manifest
  has the pairs, and of runs without a manifest the report makes them;
- a campaign compares experiments that differ in one section of the settings alone
  (`of_sections`); those that such comparisons connect are measured together (`connected`).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Protocol

from kvscope.base.errors import BadInput
from kvscope.plan.named import name, name_of
from kvscope.plan.traits import ChosenOption, Compared, Settings, in_tokens, tell_apart

if TYPE_CHECKING:
    from kvscope.plan.question import Question

# Keys whose values ask for different work: what one costs says nothing of the other.
DIFFERENT_WORK = ("workload", "model", "seed")
# Sections of the settings in which experiments of a campaign may differ; others ask for other work,
# or say how it is measured.
SECTIONS = ("device", "engine", "batching", "overflow", "cache")


class WithSettings(Protocol):
    """An experiment, of which its id and its settings matter here."""

    @property
    def id(self) -> str:
        """The experiment's id."""

    def to_dict(self) -> Settings:
        """Its settings, each section a group of keys."""


def compare(
    ids: Sequence[str],
    varied: Sequence[Settings],
    otherwise: Sequence[str],
    question: "Question | None" = None,
) -> Compared:
    """Experiments by ids and varied settings, told apart and compared for a question."""
    rows = dict(zip(ids, in_tokens(varied), strict=True))
    return replace(tell_apart(ids, varied, otherwise), pairs=_pairs(rows, question))


def read(manifest: Mapping[str, Any], path: object) -> Compared:
    """The labels, traits and pairs in a manifest; BadInput if a trait or an id is damaged."""
    entries = {entry["id"]: entry for entry in manifest["experiments"]}
    for key, pairs in manifest["pairs"].items():
        for pair in pairs:
            if len(pair) != 2 or not entries.keys() >= {*pair}:
                raise BadInput(
                    f"{path}: manifest.pairs.{key} has {pair!r:.120} but must have pairs of ids of "
                    "its experiments; plan the study again"
                )
    return Compared(
        {i: entry["label"] for i, entry in entries.items()},
        {i: from_json(e["traits"], f"{path}: traits of {i}") for i, e in entries.items()},
        {key: [(base, other) for base, other in pairs] for key, pairs in manifest["pairs"].items()},
    )


def _pairs(
    rows: Mapping[str, Settings], question: "Question | None"
) -> dict[str, list[tuple[str, str]]]:
    """Pairs of experiments that differ in one key and of which one has its base value.

    With the key that the question asks about, those may differ that go along.
    """
    texts = {id_: {key: repr(value) for key, value in row.items()} for id_, row in rows.items()}
    pairs = {}
    for key in dict.fromkeys(key for row in rows.values() for key in row):
        asked = question if question and question.key == key else None
        if key.split(".")[0] not in DIFFERENT_WORK and (
            of_key := [*_pairs_of_key(rows, texts, key, asked)]
        ):
            pairs[key] = of_key
    return pairs


def _pairs_of_key(
    rows: Mapping[str, Settings],
    texts: Mapping[str, Mapping[str, str]],
    key: str,
    question: "Question | None",
) -> Iterator[tuple[str, str]]:
    values = {id_: row.get(key) for id_, row in rows.items()}
    first = next((value for value in values.values() if value is not None), None)
    base, along = (question.base, {*question.along}) if question else (first, set[str]())
    bases: dict[str, list[str]] = {}
    for ids in equal_but_for(texts, lambda k: k == key or k in along or k.startswith(f"{key}.")):
        of_base = [id_ for id_ in ids if values[id_] == base]
        bases |= dict.fromkeys(ids, of_base)
    for other, value in values.items():
        for candidate in bases.get(other, ()) if value not in (base, None) else ():
            if {*differing_keys(rows[candidate], rows[other])} - along == {key}:
                yield candidate, other


def differing_keys(one: Settings, other: Settings) -> list[str]:
    """The keys in which two experiments differ.

    A key that only one of them has is no difference of its own where the option it comes with
    differs, too: `batching.chunk_tokens` of chunked beside mixed batching.
    """
    keys = list(dict.fromkeys((*one, *other)))
    differ = [key for key in keys if one.get(key) != other.get(key)]
    return [
        key
        for key in differ
        if (group := key.partition(".")[0]) == key
        or group not in differ
        or (one.get(key) is not None and other.get(key) is not None)
    ]


def of_sections(
    experiments: Sequence[WithSettings], key: str | None = None
) -> list[tuple[str, str]]:
    """The pairs of ids whose settings differ in one section alone; with `key`, in that key's."""
    sections = SECTIONS if key is None else (key.partition(".")[0],)
    groups = groups_by_section(experiments, sections)
    return [pair for group in groups for pair in combinations(group, 2)]


def connected(experiments: Sequence[WithSettings]) -> list[tuple[str, ...]]:
    """The ids in groups that comparisons connect, in their order."""
    members = {e.id: [e.id] for e in experiments}
    for group in groups_by_section(experiments):
        for first, other in pairwise(group):
            if (merged := members[first]) is not (more := members[other]):
                merged += more
                members.update(dict.fromkeys(more, merged))
    place = {e.id: number for number, e in enumerate(experiments)}
    groups = {id(group): group for group in members.values()}.values()
    return [tuple(sorted(group, key=place.__getitem__)) for group in groups]


def groups_by_section(
    experiments: Iterable[WithSettings], sections: Iterable[str] = SECTIONS
) -> Iterator[list[str]]:
    """Lists of two ids or more whose settings are equal except in one of these sections.

    Another device is another engine: with the section of the device its name is equal, too.
    """
    settings = {e.id: e.to_dict() for e in experiments}
    rows = {
        id_: {k: json.dumps(v, default=str) for k, v in row.items()}
        | {"device.name": row["device"]["name"]}
        for id_, row in settings.items()
    }
    for section in sections:
        yield from equal_but_for(rows, section.__eq__)


def equal_but_for(
    rows: Mapping[str, Mapping[str, str]], differs: Callable[[str], bool]
) -> Iterator[list[str]]:
    """Lists of two ids or more whose settings, as text, are equal but for keys that may differ."""
    equal: dict[frozenset[tuple[str, str]], list[str]] = defaultdict(list)
    for id_, row in rows.items():
        equal[frozenset(item for item in row.items() if not differs(item[0]))].append(id_)
    yield from (ids for ids in equal.values() if len(ids) > 1)


def as_json(traits: Settings) -> Settings:
    """Traits as JSON: an option with its settings, or a value with its name, is an object."""
    return {key: _stored(value) for key, value in traits.items()}


def _stored(value: Any) -> Any:
    if isinstance(value, ChosenOption):
        return {"option": _stored(value.name), "settings": as_json(dict(value.settings))}
    words = name_of(value)
    return value if words is None else {"value": value, "name": words}


def from_json(stored: Settings, place: str) -> Settings:
    """The traits that are stored at a place of a file; BadInput if one is damaged."""
    return {key: _trait(value, f"{place}.{key}") for key, value in stored.items()}


def _trait(value: Any, place: str) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case {"value": int() | float() | str() as plain, "name": str() as words}:
            return name(plain, words)
        case {"option": str() | {"value": str()} as option, "settings": dict() as settings}:
            parts = from_json(settings, place)
            return ChosenOption(_trait(option, place), tuple(parts.items()))
    raise BadInput(f"{place} is {value!r:.60} but must be a trait; plan the study again")
